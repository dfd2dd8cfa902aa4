"""A folder that sentence-transformers opens, where embedkit is and where it is not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from support.bare_venv import run_bare
from support.small_contextual import backbone
from support.tiny_bert import real_tokenizer

from embedkit.errors import UserError
from embedkit.models.contextual.context import similarity
from embedkit.models.contextual.export import is_own_code, write_contextual
from embedkit.models.contextual.loading import load_contextual
from embedkit.models.contextual.model import Contextual
from embedkit.models.embedding_model import Role
from embedkit.recipe import ContextualConfig

CORPUS = [f"a document about {subject}" for subject in ("otters", "tides", "kilns", "ferns")]
TEXTS = ["how do otters sleep", "x", "", "when is it high tide " * 12]
PROMPTS = {"query": "query: ", "document": "document: "}
PLAIN: dict[str, Any] = {"num_context": 6}
HEADS: dict[str, Any] = PLAIN | {
    "soft_prompts": 2,
    "context_projection": True,
    "output_projection": True,
    "include_prompt": False,
    "first_position": 5,
}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "neobert": ("neobert", PLAIN),
    "neobert-heads": ("neobert", HEADS),
    "neobert-tied": ("neobert", PLAIN | {"tied": True}),
    "bert": ("bert", PLAIN),
    "roberta-heads": ("roberta", HEADS),
    "modernbert": ("modernbert", PLAIN),
    "modernbert-published": ("modernbert", HEADS | {"entry": "published"}),
    "nomic": ("nomic_bert", PLAIN),
    "nomic-published": ("nomic_bert", HEADS | {"entry": "published"}),
    "with-positions": ("eurobert", PLAIN | {"position_free": False, "context_norm": False}),
}


def made(name: str) -> Contextual:
    kind, settings = SHAPES[name]
    config = ContextualConfig(**settings)
    words: dict[str, Any] = {"vocab_size": 30522, "max_position_embeddings": 128}
    model = Contextual(
        None if config.tied else backbone(kind, seed=1, **words),
        backbone(kind, **words),
        real_tokenizer(),
        config,
        prompts=PROMPTS,
        max_tokens=60,
        position_limit=128,
        name="tiny",
    )
    with torch.random.fork_rng(devices=()), torch.no_grad():
        torch.manual_seed(3)
        for parameter in model.slots.parameters():
            parameter.add_(torch.randn_like(parameter))
    return model.float().eval()


def opened(folder: Path) -> Any:
    return SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)


def both_roles(model: Contextual, documents: list[str] | None) -> NDArray[np.float32]:
    context = None if documents is None else model.build_context(documents)
    roles: tuple[Role, ...] = ("query", "document")
    return np.stack([model.encode(TEXTS, role=role, context=context).vectors for role in roles])


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.slow
def test_an_export_gives_sentence_transformers_the_same_vectors(name: str, tmp_path: Path) -> None:
    ours = made(name)
    write_contextual(ours, tmp_path / "model", card="# mine\n")
    theirs = opened(tmp_path / "model")
    context = theirs[0].build_context(CORPUS)
    # Ours are in the order of their draw.
    expected = ours.build_context(CORPUS).vectors
    np.testing.assert_allclose(np.sort(context, axis=0), np.sort(expected, axis=0), atol=1e-5)
    found = [
        theirs.encode(TEXTS, prompt_name=kind, dataset_embeddings=expected)
        for kind in ("query", "document")
    ]
    np.testing.assert_allclose(np.stack(found), both_roles(ours, CORPUS), atol=1e-5)
    alone = theirs.encode(TEXTS, dataset_embeddings=context[:0], prompt="query: ")
    np.testing.assert_allclose(alone, both_roles(ours, [])[0], atol=1e-5)
    assert (tmp_path / "model" / "README.md").read_text() == "# mine\n"


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.slow
def test_an_export_is_loaded_again_as_it_was(name: str, tmp_path: Path) -> None:
    ours = made(name)
    write_contextual(ours, tmp_path / "model")
    again = load_contextual(str(tmp_path / "model"))
    assert again.identity == ours.identity
    assert (again.max_tokens, again.position_limit) == (ours.max_tokens, ours.position_limit)
    # So a context outlives the export.
    again.encode(["a"], context=ours.build_context(CORPUS))


@pytest.mark.parametrize("name", ["neobert-heads", "neobert-tied", "modernbert"])
@pytest.mark.slow
def test_a_frozen_context_needs_nothing_passed(name: str, tmp_path: Path) -> None:
    ours = made(name)
    context = ours.build_context(CORPUS, seed=4)
    write_contextual(ours, tmp_path / "model", context=context)
    theirs = opened(tmp_path / "model")
    found = [theirs.encode(TEXTS, prompt_name=kind) for kind in ("query", "document")]
    expected = both_roles(ours, CORPUS)
    np.testing.assert_allclose(np.stack(found), expected, atol=1e-5)
    with pytest.raises(ValueError, match="frozen context and no encoder"):
        theirs[0].build_context(CORPUS)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["first"] is None
    assert config["frozen"]["hash"] == context.hash
    again = load_contextual(str(tmp_path / "model"))
    np.testing.assert_allclose(both_roles(again, None), expected, atol=1e-5)
    # In the same context, and so comparable.
    similarity(again.encode(TEXTS), ours.encode(TEXTS, context=context))
    with pytest.raises(UserError, match="frozen context and no encoder"):
        again.build_context(CORPUS)
    write_contextual(again, tmp_path / "again")
    np.testing.assert_allclose(
        opened(tmp_path / "again").encode(TEXTS, prompt_name="query"), expected[0], atol=1e-5
    )


ELSEWHERE = """
import importlib.util, sys
import numpy as np
assert importlib.util.find_spec("embedkit") is None
from sentence_transformers import SentenceTransformer
folder, output, corpus, *texts = sys.argv[1:]
model = SentenceTransformer(folder, device="cpu", trust_remote_code=True)
context = model[0].build_context(corpus.split("|"))
kinds = ("query", "document")
found = [model.encode(texts, prompt_name=kind, dataset_embeddings=context) for kind in kinds]
np.save(output, np.stack(found))
model.save(output + "-saved")
again = SentenceTransformer(output + "-saved", device="cpu", trust_remote_code=True)
kept = again.encode(texts, prompt_name="query", dataset_embeddings=context)
np.testing.assert_allclose(kept, found[0], atol=1e-6)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["neobert-heads", "modernbert"])
def test_an_export_needs_no_embedkit(name: str, bare_python: Path, tmp_path: Path) -> None:
    ours = made(name)
    write_contextual(ours, tmp_path / "model")
    vectors = tmp_path / "vectors.npy"
    code: list[str | Path] = [bare_python, "-c", ELSEWHERE, tmp_path / "model", vectors]
    run_bare([*code, "|".join(CORPUS), *TEXTS], cwd=tmp_path)
    np.testing.assert_allclose(np.load(vectors), both_roles(ours, CORPUS), atol=1e-5)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export. Read it only."""
    folder = tmp_path_factory.mktemp("plain") / "model"
    write_contextual(made("bert"), folder)
    return folder


def test_the_code_asks_for_trust(plain: Path) -> None:
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        SentenceTransformer(str(plain), device="cpu")


def test_a_forgotten_or_unfit_context_is_an_error(plain: Path) -> None:
    theirs = opened(plain)
    with pytest.raises(ValueError, match=r"dataset_embeddings=model\[0\].build_context"):
        theirs.encode(TEXTS)
    with pytest.raises(ValueError, match="a context of 7 documents: the model has 6 slots"):
        theirs[0].build_context(["x"] * 7)


def test_padding_and_batch_mates_do_not_matter_there_either(plain: Path) -> None:
    theirs = opened(plain)
    context = theirs[0].build_context(CORPUS)
    one = theirs.encode(TEXTS, dataset_embeddings=context, batch_size=1)
    np.testing.assert_allclose(theirs.encode(TEXTS, dataset_embeddings=context), one, atol=1e-5)
    assert theirs.get_embedding_dimension() == 16
    assert theirs.max_seq_length == 60
    assert "transformers_version" not in repr(theirs)


def test_one_text_has_one_vector_there_too(plain: Path) -> None:
    theirs = opened(plain)
    context = theirs[0].build_context(CORPUS)
    one = theirs.encode(TEXTS[0], dataset_embeddings=context)
    assert one.shape == (16,)
    (expected,) = theirs.encode(TEXTS[:1], dataset_embeddings=context)
    np.testing.assert_allclose(one, expected, atol=1e-6)
    lone, listed = (theirs[0].preprocess(given) for given in (TEXTS[0], TEXTS[:1]))
    assert torch.equal(lone["input_ids"], listed["input_ids"])
    for strange in (None, [None], ("a", None)):
        with pytest.raises(ValueError, match=r"texts\[.\] = None: every text must be a str"):
            theirs.encode(strange, dataset_embeddings=context)
    with pytest.raises(ValueError, match="the corpus is a single str: pass a list of documents"):
        theirs[0].build_context(CORPUS[0])


def test_the_folder_holds_its_code_which_imports_nothing_of_embedkit(plain: Path) -> None:
    files = sorted(plain.rglob("*.py"))
    assert [path.name for path in files] == ["modeling_contextual.py", "prefix.py"]
    imports = [line for path in files for line in path.read_text().splitlines() if "import" in line]
    assert imports
    assert not [line for line in imports if "embedkit" in line]
    assert is_own_code(plain)


def test_a_context_of_another_model_is_not_frozen(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="made by another model than tiny"):
        write_contextual(
            made("bert"), tmp_path / "model", context=made("neobert").build_context(CORPUS)
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("contextual", "soft_prompts"), 3, r'do not fit its config.json \(Missing .* "slots.soft'),
        (("second", "num_hidden_layers"), 1, r"its second encoder do not fit .*layers?\.1\."),
        (("second", "hidden_size"), 32, r"its second encoder do not fit .*size mismatch"),
        (("first",), None, r"do not fit its config.json \(Unexpected .*first\.embed"),
    ],
)
def test_weights_without_a_place_are_refused(
    path: tuple[str, ...], value: object, message: str, plain: Path, tmp_path: Path
) -> None:
    for each in plain.iterdir():
        (tmp_path / each.name).write_bytes(each.read_bytes())
    config = json.loads((plain / "config.json").read_text())
    *tables, last = path
    table = config
    for name in tables:
        table = table[name]
    table[last] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=message) as refused:
        load_contextual(str(tmp_path))
    assert "\n" not in str(refused.value)


def test_slots_of_another_number_are_refused(tmp_path: Path) -> None:
    write_contextual(made("neobert-heads"), tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(path.read_text().replace('"soft_prompts": 2', '"soft_prompts": 1'))
    with pytest.raises(UserError, match=r"its config.json \(size mismatch for slots.soft_prompts"):
        load_contextual(str(tmp_path / "model"))
