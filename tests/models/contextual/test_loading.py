from itertools import product
from pathlib import Path

import pytest
from embedkit_cli.app import app
from support.cde_checkpoints import write
from typer.testing import CliRunner

import embedkit
from embedkit.errors import UserError
from embedkit.models import hub
from embedkit.models.contextual.export import write_contextual
from embedkit.models.contextual.loading import load_contextual
from embedkit.models.contextual.model import Contextual
from embedkit.models.settings import ExportTarget
from embedkit.recipe import ContextualConfig


def test_a_folder_of_ours_and_a_released_one_are_told_apart(
    tiny_model: Path, tmp_path: Path
) -> None:
    ours = Contextual.around(hub.load(str(tiny_model)), ContextualConfig(num_context=3))
    write_contextual(ours, tmp_path / "ours")
    assert load_contextual(str(tmp_path / "ours")).identity == ours.identity
    (tmp_path / "released").mkdir()
    write(tmp_path / "released", "v2")
    assert load_contextual(str(tmp_path / "released")).config.entry == "published"


def test_a_model_of_one_stage_says_how_to_make_two(tiny_model: Path) -> None:
    with pytest.raises(UserError, match=r"has one stage; Contextual\.around"):
        load_contextual(str(tiny_model))


def test_what_the_hub_does_not_give_is_one_line() -> None:
    with pytest.raises(UserError, match="is no folder here, and the hub does not give it") as told:
        load_contextual("no/such-model")
    assert "\n" not in str(told.value)


def test_both_stages_begin_as_one_encoder_without_its_pooler(tiny_model: Path) -> None:
    embedder = hub.load(str(tiny_model))
    before = {name: each.clone() for name, each in embedder.state_dict().items()}
    model = Contextual.around(embedder, ContextualConfig(num_context=3))
    assert model.first is not None
    assert model.first is not model.second
    assert "pooler.dense.weight" not in " ".join(model.state_dict())
    first, second = model.first.state_dict(), model.second.state_dict()
    assert first.keys() == second.keys()
    assert all((first[name] == second[name]).all() for name in first)
    kept = {name for name in before if "pooler" not in name}
    assert kept == {f"backbone.{name}" for name in second}


def test_a_contextual_model_is_loaded_and_exported_by_its_folder(
    tiny_model: Path, tmp_path: Path
) -> None:
    ours = Contextual.around(hub.load(str(tiny_model)), ContextualConfig(num_context=3))
    ours.save(tmp_path / "ours")
    assert embedkit.load(tmp_path / "ours", dtype="fp32").identity == ours.identity
    words = ("--model", tmp_path / "ours", "--to", "sentence-transformers", "--output")
    command = ["export", *map(str, (*words, tmp_path / "out"))]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert load_contextual(str(tmp_path / "out")).identity == ours.identity
    targets: tuple[ExportTarget, ...] = ("eurobert", "neobert", "onnx")
    models: tuple[Path | Contextual, ...] = (tmp_path / "ours", ours)
    for model, to in product(models, targets):
        with pytest.raises(
            UserError, match=f"model of two stages, which {to} cannot hold; --to se"
        ):
            embedkit.export(model, tmp_path / to, to=to)
        assert not (tmp_path / to).exists()


def test_any_model_of_one_stage_is_exported_for_sentence_transformers(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = embedkit.export(tiny_model, tmp_path / "out", to="sentence-transformers")
    assert hub.load(str(folder)).identity == hub.load(str(tiny_model)).identity
