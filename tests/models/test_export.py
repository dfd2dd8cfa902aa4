import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from support.bare_venv import run_bare

from embedkit.errors import UserError
from embedkit.models import hub
from embedkit.models.embedder import Embedder
from embedkit.models.export import write_model
from embedkit.recipe import ModelSettings

TEXTS = ["Fever with chills", "", "def add(a, b): return a + b", "word " * 200]
PROMPTS = {"query": "find: ", "document": "passage number: ", "mine-query": "mine: "}
KINDS = {
    "mean": ModelSettings(pooling="mean"),
    "cls": ModelSettings(pooling="cls"),
    "mean-of-text": ModelSettings(pooling="mean", include_prompt=False),
    "first-of-text": ModelSettings(pooling="cls", include_prompt=False),
}


def load(folder: Path, kind: str = "mean") -> Embedder:
    embedder = hub.load(str(folder), settings=KINDS[kind])
    embedder.prompts = PROMPTS
    embedder.max_tokens = 60
    return embedder


@pytest.fixture(scope="module")
def exported(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an export of each kind."""
    root = tmp_path_factory.mktemp("exported")
    for kind in KINDS:
        write_model(load(tiny_model, kind), root / kind, card="# mine\n")
    return root


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_export_gives_sentence_transformers_the_same_vectors(
    exported: Path, tiny_model: Path, kind: str
) -> None:
    ours = load(tiny_model, kind)
    theirs = SentenceTransformer(str(exported / kind), device="cpu")
    assert {name: theirs.prompts[name] for name in PROMPTS} == PROMPTS
    assert theirs.max_seq_length == 60
    np.testing.assert_allclose(theirs.encode(TEXTS), ours.encode(TEXTS), atol=1e-5)
    np.testing.assert_allclose(theirs.encode_query(TEXTS), ours.encode_query(TEXTS), atol=1e-5)
    documents = theirs.encode_document(TEXTS)
    np.testing.assert_allclose(documents, ours.encode_document(TEXTS), atol=1e-5)
    assert not np.allclose(ours.encode_query(TEXTS), ours.encode_document(TEXTS), atol=1e-3)


ELSEWHERE = """
import importlib.util, sys
import numpy as np
assert importlib.util.find_spec("embedkit") is None
assert importlib.util.find_spec("embedkit_cli") is None
from sentence_transformers import SentenceTransformer
texts = {texts!r}
for kind in {kinds!r}:
    model = SentenceTransformer(kind, device="cpu")
    assert model.prompts["mine-query"] == "mine: "
    vectors = model.encode_query(texts), model.encode_document(texts)
    np.save(f"{{sys.argv[1]}}/{{kind}}.npy", np.stack(vectors))
"""


@pytest.mark.slow
def test_an_export_needs_no_embedkit(
    exported: Path, tiny_model: Path, bare_python: Path, tmp_path: Path
) -> None:
    code = ELSEWHERE.format(texts=TEXTS, kinds=list(KINDS))
    run_bare([bare_python, "-c", code, tmp_path], cwd=exported)
    for kind in KINDS:
        ours = load(tiny_model, kind)
        expected = np.stack([ours.encode_query(TEXTS), ours.encode_document(TEXTS)])
        np.testing.assert_allclose(np.load(tmp_path / f"{kind}.npy"), expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_is_loaded_again_as_it_was(exported: Path, tiny_model: Path, kind: str) -> None:
    again = hub.load(str(exported / kind))
    assert again.prompts == PROMPTS
    assert again.identity == load(tiny_model, kind).identity


def test_an_export_holds_no_code_and_no_limit_but_the_models(
    tiny_model: Path, tmp_path: Path
) -> None:
    embedder = load(tiny_model)
    embedder.encode(["a text that is cut"])
    write_model(embedder, tmp_path / "model", card="# mine\n")
    files = {path.name: path for path in (tmp_path / "model").iterdir()}
    assert not [name for name in files if name.endswith((".py", ".bin"))]
    assert "auto_map" not in files["config.json"].read_text()
    tokenizer = json.loads(files["tokenizer.json"].read_text())
    assert (tokenizer["truncation"], tokenizer["padding"]) == (None, None)
    assert files["README.md"].read_text() == "# mine\n"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_export_replaces_an_older_one(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_model(load(tiny_model), folder)
    embedder = load(tiny_model)
    with torch.no_grad():
        next(embedder.parameters()).zero_()
    write_model(embedder, folder)
    assert hub.load(str(folder)).identity == embedder.identity


@pytest.mark.slow
def test_an_export_does_not_replace_a_model_that_was_trained_on_in_its_place(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    write_model(load(tiny_model), folder)
    theirs = SentenceTransformer(str(folder), device="cpu")
    with torch.no_grad():
        next(theirs.parameters()).zero_()
    theirs.save(str(folder))
    trained = hub.load(str(folder)).identity
    with pytest.raises(UserError, match=r"or they were changed: .*; move them elsewhere"):
        write_model(load(tiny_model), folder)
    assert hub.load(str(folder)).identity == trained


def test_an_export_that_fails_leaves_the_older_one_and_nothing_else(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    write_model(load(tiny_model), folder)
    broken = load(tiny_model)
    monkeypatch.setattr(broken.tokenizer, "save_pretrained", fail)
    with pytest.raises(OSError, match="no space"):
        write_model(broken, folder)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert hub.load(str(folder)).identity == load(tiny_model).identity


def fail(*_arguments: object) -> None:
    raise OSError("no space left on device")


def test_a_folder_of_sentence_transformers_own_making_is_read(
    exported: Path, tmp_path: Path
) -> None:
    SentenceTransformer(str(exported / "cls"), device="cpu").save(str(tmp_path / "saved"))
    again, before = hub.load(str(tmp_path / "saved")), hub.load(str(exported / "cls"))
    assert (again.pooling, again.max_tokens) == ("cls", 60)
    assert again.prompts == PROMPTS
    np.testing.assert_array_equal(again.encode_query(TEXTS), before.encode_query(TEXTS))


def test_what_a_kill_has_left_of_an_export_is_removed_by_the_next(
    tiny_model: Path, tmp_path: Path
) -> None:
    left = tmp_path / ".model.embedkit-part-killed"
    left.mkdir()
    (left / "model.safetensors").write_text("half")
    (tmp_path / ".model.mine").mkdir()
    write_model(load(tiny_model), tmp_path / "model")
    assert {path.name for path in tmp_path.iterdir()} == {"model", ".model.mine"}


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_an_export_can_be_read_by_those_whom_the_umask_lets(
    tiny_model: Path, tmp_path: Path, mask: int
) -> None:
    before = os.umask(mask)
    try:
        write_model(load(tiny_model), tmp_path / "model")
    finally:
        os.umask(before)
    modes = {path: path.stat().st_mode & 0o777 for path in tmp_path.glob("model/**/*")}
    assert tmp_path / "model" / "model.safetensors" in modes
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o666 & ~mask}
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o777 & ~mask


def test_the_default_prompt_outlives_an_export(exported: Path, tmp_path: Path) -> None:
    theirs = SentenceTransformer(
        str(exported / "mean"), device="cpu", prompts=PROMPTS, default_prompt_name="mine-query"
    )
    theirs.save(str(tmp_path / "theirs"))
    write_model(hub.load(str(tmp_path / "theirs")), tmp_path / "ours")
    again = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    assert again.default_prompt_name == "mine-query"
    np.testing.assert_allclose(again.encode(TEXTS), theirs.encode(TEXTS), atol=1e-6)
