"""Qwen3-Embedding and EmbeddingGemma: decoders are read, trained and exported as encoders are."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from support.decoders import write_gemma3, write_qwen3

from embedkit.api import finetune
from embedkit.models import hub
from embedkit.recipe import load_recipe

TEXTS = ["amber birch", "", "Cedar, delta; ember?", "fjord grove heron inlet " * 60, "x"]
DECODERS = {"qwen3": write_qwen3, "gemma3": write_gemma3}


@pytest.mark.parametrize("write", DECODERS.values(), ids=DECODERS)
def test_a_decoder_encodes_trains_and_leaves_as_in_sentence_transformers(
    write: Callable[[Path], Path], small_recipe: Path, tmp_path: Path
) -> None:
    folder = write(tmp_path / "stock")
    check_same(folder)
    run = ["steps=2", f"model={folder}"]
    exported = finetune(load_recipe(str(small_recipe), run), tmp_path / "run")
    check_same(exported)
    assert np.abs(vectors(folder) - vectors(exported)).max() > 1e-4
    # A window that reading a config halves is written whole again.
    first, last = (json.loads((each / "config.json").read_text()) for each in (folder, exported))
    assert first["sliding_window"] == last["sliding_window"]


def check_same(folder: Path) -> None:
    theirs, ours = SentenceTransformer(str(folder), device="cpu"), hub.load(str(folder))
    for encode in ("encode", "encode_query", "encode_document"):
        expected = getattr(theirs, encode)(TEXTS)
        np.testing.assert_allclose(getattr(ours, encode)(TEXTS), expected, atol=1e-5)


def vectors(folder: Path) -> np.ndarray:
    return hub.load(str(folder)).encode(TEXTS)
