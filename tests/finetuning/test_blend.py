import json
from pathlib import Path

import numpy as np
import pytest
import torch
from embedkit_cli.app import main
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from support.tiny_bert import write_tiny_model
from support.tiny_neobert import tiny_neobert, write_with_tokenizer

import embedkit
from embedkit.errors import UserError
from embedkit.models import hub
from embedkit.recipe import ModelSettings

TEXTS = ["Fever with chills", "def add(a, b): return a + b"]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two models of one architecture, whose weights differ."""
    return write_tiny_model(tmp_path / "one"), moved(write_tiny_model(tmp_path / "two"))


def moved(folder: Path) -> Path:
    weights = load_file(folder / "model.safetensors")
    draw = torch.Generator().manual_seed(1)
    for weight in weights.values():
        weight += 0.1 * torch.randn(weight.shape, generator=draw)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_weights_are_the_mean_in_double_precision(pair: tuple[Path, Path], tmp_path: Path) -> None:
    folder = embedkit.blend({str(pair[0]): 0.3, str(pair[1]): 0.7}, tmp_path / "blend")
    one, two, mean = (load_file(each / "model.safetensors") for each in (*pair, folder))
    assert one.keys() == two.keys() == mean.keys()
    for name, weight in mean.items():
        expected = 0.3 * one[name].double() + 0.7 * two[name].double()
        assert torch.equal(weight, expected.float()), name
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(theirs, hub.load(str(folder)).encode(TEXTS), atol=1e-5)


def test_a_share_of_one_is_the_model_itself(pair: tuple[Path, Path], tmp_path: Path) -> None:
    for shares in ((1.0, 0.0), (0.0, 1.0)):
        shared = dict(zip(map(str, pair), shares, strict=True))
        folder = embedkit.blend(shared, tmp_path / "blend", overwrite=True)
        own = load_file(pair[shares.index(1)] / "model.safetensors")
        for name, weight in load_file(folder / "model.safetensors").items():
            assert torch.equal(weight, own[name]), name


def test_a_neobert_is_blended_with_itself(tmp_path: Path) -> None:
    own = write_with_tokenizer(tiny_neobert(), tmp_path / "own")
    stock = embedkit.export(own, tmp_path / "stock")
    folder = embedkit.blend({str(own): 0.5, str(stock): 0.5}, tmp_path / "blend")
    assert hub.load(str(folder)).identity == hub.load(str(stock)).identity


def test_the_first_model_s_settings_are_kept_and_the_difference_is_said(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompted = hub.load(str(pair[0]))
    prompted.prompts = {"query": "find: "}
    prompted.save(tmp_path / "prompted")
    prompted.prompts = {}
    prompted.save(tmp_path / "plain")
    one, two = str(tmp_path / "prompted"), str(tmp_path / "plain")
    folder = embedkit.blend({one: 0.5, two: 0.5}, tmp_path / "blend")
    assert hub.load(str(folder)).prompts == {"query": "find: "}
    told = capsys.readouterr()
    assert f"note: {two} has another prompts than {one}, whose are kept" in told.out + told.err


def test_models_that_differ_are_refused_by_the_difference(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    one = str(pair[0])
    wide = str(write_tiny_model(tmp_path / "wide", width=48))
    pooled = hub.load(one, settings=ModelSettings(pooling="cls"))
    pooled.save(tmp_path / "cls")
    with pytest.raises(UserError, match="cannot be blended: hidden_size is 32 and 48"):
        embedkit.blend({one: 0.5, wide: 0.5}, tmp_path / "blend")
    with pytest.raises(UserError, match="cannot be blended: pooling is mean and cls"):
        embedkit.blend({one: 0.5, str(tmp_path / "cls"): 0.5}, tmp_path / "blend")
    rules = json.loads((pair[1] / "tokenizer.json").read_text())
    vocabulary = rules["model"]["vocab"]
    vocabulary["fever"], vocabulary["add"] = vocabulary["add"], vocabulary["fever"]
    (pair[1] / "tokenizer.json").write_text(json.dumps(rules))
    with pytest.raises(UserError, match="cannot be blended: their tokenizers give other ids"):
        embedkit.blend({one: 0.5, str(pair[1]): 0.5}, tmp_path / "blend")
    assert not (tmp_path / "blend").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["starter"], "starter: give a model and its share, such as starter:0.4"),
        (["starter:much"], "starter:much: give a model and its share"),
        (["starter:0.4", "starter:0.6"], "starter is given twice; add its shares up"),
        (["starter:0.4", "other:0.4"], "the shares sum to 0.8; give shares that sum to 1"),
        (["starter:1.5", "other:-0.5"], "starter:1.5: is no share; give one from 0 to 1"),
        (["starter:nan", "other:1"], "starter:nan: is no share; give one from 0 to 1"),
        (["starter:1"], "give two or more (got starter)"),
    ],
)
def test_shares_that_are_none_are_refused(
    words: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["embedkit", "blend", *words, "--output", str(tmp_path / "b")])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert told in capsys.readouterr().err
