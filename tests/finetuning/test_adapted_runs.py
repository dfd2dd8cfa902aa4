"""Runs that train adapters or vectors to be cut: what they say, keep and leave behind."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from support.bare_venv import run_bare
from support.small_runs import metrics_of
from support.tiny_bert import write_tiny_model
from support.tiny_neobert import tiny_neobert, write_with_tokenizer

from embedkit import api
from embedkit.finetuning.model import scale_to_unit_norm
from embedkit.models import hub, lora
from embedkit.models.embedder import Embedder
from embedkit.recipe import Lora, load_recipe
from embedkit.training import checkpoint

TEXTS = ["query: amber birch", "", "Cedar, delta; ember?", "fjord grove heron inlet " * 60]
BACKBONES: dict[str, Callable[[Path], Path]] = {
    "bert": write_tiny_model,
    "neobert": lambda folder: write_with_tokenizer(tiny_neobert(), folder),
}
ADAPTERS = ["lora.rank=4", "lora.dropout=0.1", "optim.lr=0.01", "optim.warmup_steps=0", "steps=4"]


@pytest.fixture(scope="module")
def adapted(small_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run of adapters beside a backbone; it is made when it is first asked for."""
    root = tmp_path_factory.mktemp("adapted")
    return partial(train_once, small_recipe, root)


def train_once(small_recipe: Path, root: Path, name: str) -> Path:
    run = root / name
    if not run.exists():
        backbone = BACKBONES[name](root / f"backbone-{name}")
        recipe = load_recipe(str(small_recipe), [*ADAPTERS, f"model={backbone}"])
        api.finetune(recipe, run)
    return run


def backbone_of(run: Path) -> Embedder:
    embedder = hub.load(str(run.with_name(f"backbone-{run.name}")))
    scale_to_unit_norm(embedder)
    return embedder


def newest(run: Path) -> checkpoint.Checkpoint:
    found, _ = checkpoint.newest(run / "checkpoints")
    assert found is not None
    return found


def trained(run: Path) -> Embedder:
    """The model as it was trained: the backbone, and beside it the adapters of the checkpoint."""
    embedder = backbone_of(run)
    lora.attach(embedder.backbone.model, Lora(rank=4), seed=0)
    embedder.load_state_dict(checkpoint.read_weights(newest(run)), strict=False)
    return embedder


@pytest.mark.parametrize("name", BACKBONES)
def test_a_checkpoint_holds_the_adapters_and_their_moments_alone(
    name: str, adapted: Callable[[str], Path]
) -> None:
    found = newest(adapted(name))
    weights = checkpoint.read_weights(found)
    assert weights
    assert all(".lora_" in each for each in weights)
    moments = load_file(found.folder / "optimizer.safetensors")
    assert {each.rpartition("/")[0] for each in moments} == weights.keys()


@pytest.mark.parametrize("name", BACKBONES)
def test_the_backbone_is_the_model_that_a_run_of_adapters_names(
    name: str, adapted: Callable[[str], Path]
) -> None:
    run = adapted(name)
    backbone = backbone_of(run)
    backbone.prompts = {"query": "query: ", "document": ""}
    assert newest(run).facts["model"]["identity"] == backbone.identity


@pytest.mark.parametrize("name", BACKBONES)
def test_adapters_leave_as_a_stock_folder_with_the_vectors_of_the_trained_model(
    name: str, adapted: Callable[[str], Path]
) -> None:
    run = adapted(name)
    expected = trained(run).encode(TEXTS)
    theirs = SentenceTransformer(str(run / "model"), device="cpu")
    np.testing.assert_allclose(theirs.encode(TEXTS), expected, atol=1e-5)
    assert np.abs(expected - backbone_of(run).encode(TEXTS)).max() > 1e-2
    config = json.loads((run / "model" / "config.json").read_text())
    assert config["model_type"] == ("eurobert" if name == "neobert" else name)
    stored = load_file(run / "model" / "model.safetensors")
    assert not [each for each in stored if "lora" in each or "base_layer" in each]


ELSEWHERE = """
import importlib.util, sys
import numpy as np
assert importlib.util.find_spec("embedkit") is None
assert importlib.util.find_spec("peft") is None
from sentence_transformers import SentenceTransformer
for name in {names!r}:
    model = SentenceTransformer(f"{{name}}/model", device="cpu")
    np.save(f"{{sys.argv[1]}}/{{name}}.npy", model.encode({texts!r}))
"""


@pytest.mark.slow
def test_adapters_open_where_neither_embedkit_nor_peft_is(
    adapted: Callable[[str], Path], bare_python: Path, tmp_path: Path
) -> None:
    made = [adapted(name) for name in BACKBONES]
    code = ELSEWHERE.format(names=list(BACKBONES), texts=TEXTS)
    run_bare([bare_python, "-c", code, tmp_path], cwd=made[0].parent)
    for run in made:
        expected = trained(run).encode(TEXTS)
        found = np.load(tmp_path / f"{run.name}.npy")
        np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=run.name)


def test_a_run_says_how_much_of_the_model_it_trains(
    small_recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for overrides in (["steps=1"], ["steps=1", "lora.rank=4"]):
        api.finetune(load_recipe(str(small_recipe), overrides), tmp_path / str(len(overrides)))
    said = " ".join(capsys.readouterr().out.split())
    # 999,072 weights, and 3,584 of adapters: two layers of 4 x (32 + 32) x 4 + 2 x (32 + 64) x 4.
    assert "1.0 M parameters trained in 15 MiB" in said
    assert "0.00 M of 1.0 M parameters trained in 4 MiB" in said


@pytest.fixture(scope="module")
def cut(small_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose vectors of 96 features may be cut to 64 and to 8."""
    root = tmp_path_factory.mktemp("cut")
    backbone = write_tiny_model(root / "backbone", width=96)
    dims = "objective.matryoshka_dims=[96, 64, 8]"
    recipe = load_recipe(str(small_recipe), ["steps=2", f"model={backbone}", dims])
    api.finetune(recipe, root / "run")
    return root / "run"


def test_sentence_transformers_cuts_vectors_that_were_trained_to_be_cut(cut: Path) -> None:
    whole = hub.load(str(cut / "model")).encode(TEXTS)
    theirs = SentenceTransformer(str(cut / "model"), device="cpu", truncate_dim=64)
    np.testing.assert_allclose(theirs.encode(TEXTS), whole[:, :64], atol=1e-5)
    expected = whole[:, :64] / np.linalg.norm(whole[:, :64], axis=1, keepdims=True)
    unit = theirs.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(unit, expected, atol=1e-5)


def test_the_loss_of_every_width_is_logged(cut: Path) -> None:
    for line in metrics_of(cut):
        losses = [line[f"loss_{width}"] for width in (96, 64, 8)]
        assert line["loss"] == pytest.approx(sum(losses) / 3)


def test_a_model_card_says_how_vectors_are_cut(cut: Path, adapted: Callable[[str], Path]) -> None:
    card = (cut / "model" / "README.md").read_text()
    assert "The first 64 or 8 features" in card
    assert "truncate_dim=8" in card
    assert "truncate_dim" not in (adapted("bert") / "model" / "README.md").read_text()
