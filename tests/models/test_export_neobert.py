import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embedkit_cli.app import main
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from support.bare_venv import run_bare
from support.tiny_bert import MINILM
from support.tiny_neobert import ABLATIONS, YARN, tiny_masked_lm, tiny_neobert, write_with_tokenizer
from transformers import AutoModel, AutoModelForMaskedLM

from embedkit.errors import UserError
from embedkit.models import hub
from embedkit.models.backbones import NeoBERTBackbone
from embedkit.models.embedder import Embedder
from embedkit.models.export import export, write_model
from embedkit.models.neobert import NeoBERTForMaskedLM, NeoBERTModel
from embedkit.recipe import ModelSettings

TEXTS = ["Fever with chills", "", "def add(a, b): return a + b", "word " * 150]


@pytest.fixture(scope="module")
def masked_lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny NeoBERT with its decoder. Read it only."""
    folder = tmp_path_factory.mktemp("neobert") / "tiny-neobert"
    return write_with_tokenizer(tiny_masked_lm(), folder)


@pytest.fixture(scope="module")
def stock(masked_lm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its export in the stock form. Read it only."""
    return export(prompted(masked_lm), tmp_path_factory.mktemp("stock") / "model")


def prompted(folder: Path) -> Embedder:
    embedder = hub.load(str(folder))
    embedder.prompts = {"query": "find: ", "document": ""}
    return embedder


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"rope_parameters": YARN}], ids=["plain", "yarn"])
def test_a_neobert_leaves_as_a_stock_folder(changes: dict[str, object], tmp_path: Path) -> None:
    ours = prompted(write_with_tokenizer(tiny_neobert(**changes), tmp_path / "own"))
    write_model(ours, tmp_path / "model")
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert theirs.max_seq_length == 128
    np.testing.assert_allclose(theirs.encode_query(TEXTS), ours.encode_query(TEXTS), atol=1e-5)
    np.testing.assert_allclose(theirs.encode_document(TEXTS), ours.encode(TEXTS), atol=1e-5)
    assert AutoModel.from_pretrained(tmp_path / "model").config.model_type == "eurobert"


ELSEWHERE = """
import importlib.util, sys
import numpy as np
assert importlib.util.find_spec("embedkit") is None
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer
folder, output, *texts = sys.argv[1:]
vectors = SentenceTransformer(folder, device="cpu").encode_query(texts)
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
limits = dict(padding=True, truncation=True, max_length=128)
batch = tokenizer(["find: " + text for text in texts], **limits, return_tensors="pt")
hidden = model(**batch).last_hidden_state.detach()
mask = batch["attention_mask"][..., None]
means = (hidden * mask).sum(1) / mask.sum(1)
np.save(output, np.stack([vectors, (means / means.norm(dim=1, keepdim=True)).numpy()]))
"""


@pytest.mark.slow
def test_a_stock_folder_needs_no_embedkit(
    masked_lm: Path, stock: Path, bare_python: Path, tmp_path: Path
) -> None:
    vectors = tmp_path / "vectors.npy"
    run_bare([bare_python, "-c", ELSEWHERE, stock, vectors, *TEXTS], cwd=tmp_path)
    model = prompted(masked_lm)
    expected = [
        model.encode_query(TEXTS),
        model.encode(TEXTS, role="query", normalize_embeddings=True),
    ]
    np.testing.assert_allclose(np.load(vectors), np.stack(expected), atol=1e-5)


def test_a_stock_folder_comes_home_as_the_same_neobert(masked_lm: Path, stock: Path) -> None:
    ours, again = prompted(masked_lm), hub.load(str(stock))
    assert isinstance(again.backbone, NeoBERTBackbone)
    assert again.identity == ours.identity
    for name, weight in again.state_dict().items():
        assert torch.equal(weight, ours.state_dict()[name]), name
    np.testing.assert_array_equal(again.encode(TEXTS), ours.encode(TEXTS))


def test_a_stock_folder_goes_back_to_the_authors_layout(
    masked_lm: Path, stock: Path, tmp_path: Path
) -> None:
    export(str(stock), tmp_path / "back", to="neobert")
    stored = load_file(masked_lm / "model.safetensors")
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert back.keys() == {name for name in stored if name.startswith("model.")}
    for name, weight in back.items():
        assert torch.equal(weight, stored[name]), name
    assert hub.load(str(tmp_path / "back")).identity == hub.load(str(stock)).identity


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_authors_layout_keeps_the_decoder_and_every_bit(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    model: Any = tiny_masked_lm()
    own = write_with_tokenizer(model.to(dtype), tmp_path / "own")
    export(str(own), tmp_path / "neobert", to="neobert")
    stored = load_file(own / "model.safetensors")
    written = load_file(tmp_path / "neobert" / "model.safetensors")
    assert written.keys() == stored.keys()
    for name, weight in stored.items():
        assert written[name].dtype == dtype
        assert torch.equal(written[name], weight), name
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "neobert")
    assert isinstance(again, NeoBERTForMaskedLM)


RELEASED = {
    "architectures": ["NeoBERTLMHead"],
    "auto_map": {"AutoConfig": "model.NeoBERTConfig", "AutoModel": "model.NeoBERT"},
    "dim_head": 16,
    "hidden_size": 32,
    "intermediate_size": 72,
    "kwargs": {"pretrained_model_name_or_path": "google-bert/bert-base-uncased"},
    "max_length": 256,
    "model_type": "neobert",
    "norm_eps": 1e-05,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "pretrained_model_name_or_path": "google-bert/bert-base-uncased",
    "torch_dtype": "float32",
    "transformers_version": "4.48.2",
    "trust_remote_code": True,
    "vocab_size": 30522,
}
"""As in the config.json of the authors' release, at the size of a test."""


def test_a_folder_as_the_authors_released_it_needs_no_code_of_theirs(
    masked_lm: Path, tmp_path: Path
) -> None:
    released = tmp_path / "released"
    shutil.copytree(masked_lm, released)
    (released / "config.json").write_text(json.dumps(RELEASED))
    ours = hub.load(str(released))
    assert ours.position_limit == 256
    expected = hub.load(str(masked_lm)).encode(TEXTS[:3])
    np.testing.assert_array_equal(ours.encode(TEXTS[:3]), expected)
    export(str(released), tmp_path / "neobert", to="neobert")
    written = load_file(tmp_path / "neobert" / "model.safetensors")
    assert written.keys() == load_file(masked_lm / "model.safetensors").keys()
    theirs = SentenceTransformer(str(export(str(released), tmp_path / "stock")), device="cpu")
    np.testing.assert_allclose(theirs.encode(TEXTS), ours.encode(TEXTS), atol=1e-5)


def test_a_bare_neobert_has_no_decoder_to_lose(tmp_path: Path) -> None:
    own = write_with_tokenizer(tiny_neobert(), tmp_path / "own")
    export(str(own), tmp_path / "neobert", to="neobert")
    assert "decoder.weight" not in load_file(tmp_path / "neobert" / "model.safetensors")
    assert isinstance(AutoModel.from_pretrained(tmp_path / "neobert"), NeoBERTModel)


def test_a_tokenizers_limit_is_not_a_neoberts(tmp_path: Path) -> None:
    model = tiny_neobert(max_position_embeddings=1000)
    embedder = hub.load(str(write_with_tokenizer(model, tmp_path)))
    assert embedder.tokenizer.model_max_length == 512
    assert (embedder.max_tokens, embedder.position_limit) == (1000, 1000)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_kernel_asked_for_is_used(masked_lm: Path, attention: str) -> None:
    settings = ModelSettings.model_validate({"attention": attention})
    embedder = hub.load(str(masked_lm), settings=settings)
    assert embedder.backbone.model.config._attn_implementation == attention
    expected = hub.load(str(masked_lm)).encode(TEXTS)
    np.testing.assert_allclose(embedder.encode(TEXTS), expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("key", ABLATIONS)
def test_an_ablation_without_a_stock_form_leaves_as_it_is_and_says_so(
    key: str, tmp_path: Path
) -> None:
    own = write_with_tokenizer(tiny_neobert(**ABLATIONS[key]), tmp_path / "own")
    embedder = prompted(own)
    with pytest.warns(
        UserWarning, match=f"where embedkit.models.neobert is imported: its {key} is"
    ) as told:
        write_model(embedder, tmp_path / "model")
    assert "\n" not in str(told[0].message)
    again = hub.load(str(tmp_path / "model"))
    assert again.identity == embedder.identity
    with pytest.raises(UserError, match=f"its {key} is .*; --to neobert keeps it as it is"):
        export(str(own), tmp_path / "stock")
    assert not (tmp_path / "stock").exists()


def test_absolute_positions_end_where_their_table_does(tmp_path: Path) -> None:
    own = write_with_tokenizer(tiny_neobert(position="absolute"), tmp_path)
    embedder = hub.load(str(own))
    assert embedder.position_limit == 128
    assert embedder.encode(["word " * 500]).shape == (1, 32)


def command(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["embedkit", "export", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_command_exports_and_replaces_only_when_asked(
    masked_lm: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "out"
    words = ("--model", masked_lm, "--to", "eurobert", "--output", output)
    assert command(monkeypatch, *words) == 0
    assert capsys.readouterr().out == f"{output}\n"
    (output / "mine.txt").write_text("kept")
    assert command(monkeypatch, *words) == 2
    assert "is not empty; replace an earlier export with --overwrite" in capsys.readouterr().err
    assert command(monkeypatch, *words, "--overwrite") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "mine.txt; move them elsewhere, or choose another --output" in line
    assert (output / "mine.txt").read_text() == "kept"
    (output / "mine.txt").rename(tmp_path / "mine.txt")
    (output / "model.safetensors").unlink()
    assert command(monkeypatch, *words, "--overwrite") == 0
    assert hub.load(str(output)).identity == hub.load(str(masked_lm)).identity


def test_overwrite_leaves_alone_what_no_export_has_written(
    masked_lm: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("1")
    earlier = export(str(masked_lm), tmp_path / "earlier")
    (earlier / "embedkit.json").unlink()
    for folder in (tmp_path / "thesis", earlier):
        words = ("--model", masked_lm, "--to", "neobert", "--output", folder, "--overwrite")
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert command(monkeypatch, *words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "holds no embedkit.json" in line
        assert "delete it yourself, or choose another --output" in line
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"thesis", "earlier"}


@pytest.mark.slow
def test_an_export_of_one_form_may_replace_that_of_another(masked_lm: Path, tmp_path: Path) -> None:
    for form in ("eurobert", "neobert", "eurobert"):
        export(str(masked_lm), tmp_path / "out", to=form, overwrite=True)
        assert hub.load(str(tmp_path / "out")).identity == hub.load(str(masked_lm)).identity


@pytest.mark.parametrize(
    ("model", "to", "message"),
    [
        (MINILM, "eurobert", ": is a bert, not a NeoBERT; --to onnx takes any encoder"),
        (MINILM, "neobert", ": is a bert, not a NeoBERT"),
        (MINILM, "gguf", "--to: 'gguf' is not one of 'eurobert', 'neobert', 'onnx'"),
        ("/no/such/folder", "eurobert", "/no/such/folder: no such folder"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    model: str,
    to: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--model", model, "--to", to, "--output", tmp_path / "out")
    assert command(monkeypatch, *words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not list(tmp_path.iterdir())


def test_a_file_is_not_taken_for_a_folder(masked_lm: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UserError, match="is a file; choose another --output"):
        export(str(masked_lm), tmp_path / "out", overwrite=True)
