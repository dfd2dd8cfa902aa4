"""Runs that start from models with Dense modules, or with vectors of any norm."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from support.stock_models import write_stock

from embedkit import api, load_recipe
from embedkit.models import hub

TEXTS = ["amber birch", "", "Cedar, delta; ember?"]


def run(recipe: Path, folder: Path, model: Path, *overrides: str) -> Path:
    return api.finetune(load_recipe(str(recipe), ["steps=2", f"model={model}", *overrides]), folder)


@pytest.mark.parametrize("settings", [[], ["embedder.train_dense=false"], ["lora.rank=2"]])
def test_dense_modules_are_trained_or_kept_and_exported(
    settings: list[str], small_recipe: Path, tiny_model: Path, tmp_path: Path
) -> None:
    start = write_stock(tiny_model, tmp_path / "stock", "two dense")
    exported = run(small_recipe, tmp_path / "run", start, *settings)
    for name in ("2_Dense", "3_Dense"):
        before, after = (load_file(f / name / "model.safetensors") for f in (start, exported))
        moved = float((before["linear.weight"] - after["linear.weight"]).abs().max())
        assert (moved == 0) == (settings == ["embedder.train_dense=false"])
    theirs = SentenceTransformer(str(exported), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(hub.load(str(exported)).encode(TEXTS), theirs, atol=1e-5)
    assert theirs.shape == (3, 24)
    card = (exported / "README.md").read_text()
    assert "the mean of the last hidden states, behind 2 Dense modules, scaled to unit" in card


def test_vectors_of_any_norm_are_trained_to_unit_norm_which_is_said(
    small_recipe: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = write_stock(tiny_model, tmp_path / "stock", "dot")
    exported = run(small_recipe, tmp_path / "run", start)
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "note: stock has similarity dot and vectors of any norm; this run trains, scores and "
        "exports whole unit vectors, compared by cosine"
    ) in said
    theirs = SentenceTransformer(str(exported), device="cpu")
    assert theirs.similarity_fn_name == "cosine"
    np.testing.assert_allclose(np.linalg.norm(theirs.encode(TEXTS), axis=1), 1, atol=1e-5)
    settings = json.loads((exported / "config_sentence_transformers.json").read_text())
    assert settings["similarity_fn_name"] == "cosine"


def test_a_model_of_unit_vectors_is_taken_as_it_is(
    small_recipe: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(small_recipe, tmp_path / "run", write_stock(tiny_model, tmp_path / "stock", "plain"))
    assert "unit vectors" not in " ".join(capsys.readouterr().out.split())
