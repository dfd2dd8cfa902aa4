"""What a folder of sentence-transformers says behind its encoder is what embedkit computes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from support.stock_models import KINDS, write_stock

from embedkit.errors import UserError
from embedkit.models import hub

TEXTS = ["Fever with chills", "", "def add(a, b): return a + b", "word " * 200]


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_encodes_as_in_sentence_transformers_also_once_exported(
    kind: str, tiny_model: Path, tmp_path: Path
) -> None:
    folder = write_stock(tiny_model, tmp_path / "stock", kind)
    theirs, ours = SentenceTransformer(str(folder), device="cpu"), hub.load(str(folder))
    ours.save(tmp_path / "exported")
    again = SentenceTransformer(str(tmp_path / "exported"), device="cpu")
    for model in (ours, again):
        for encode in ("encode", "encode_query", "encode_document"):
            expected = getattr(theirs, encode)(TEXTS)
            found = getattr(model, encode)(TEXTS)
            np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)
    vectors = ours.encode(TEXTS)
    assert vectors.shape[1] == ours.width
    unit = np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert unit == ours.is_unit_norm
    assert ours.similarity == theirs.similarity_fn_name == again.similarity_fn_name
    assert hub.load(str(tmp_path / "exported")).identity == ours.identity


def test_every_kind_is_another_model(tiny_model: Path, tmp_path: Path) -> None:
    found = {hub.load(str(write_stock(tiny_model, tmp_path / k, k))).identity for k in KINDS}
    assert len(found) == len(KINDS)


@pytest.mark.parametrize("kind", ["no normalize", "truncated"])
def test_vectors_can_be_scaled_to_unit_norm(kind: str, tiny_model: Path, tmp_path: Path) -> None:
    folder = write_stock(tiny_model, tmp_path / "stock", kind)
    theirs, ours = SentenceTransformer(str(folder), device="cpu"), hub.load(str(folder))
    expected = theirs.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(ours.encode(TEXTS, normalize_embeddings=True), expected, atol=1e-5)


def test_a_head_computes_in_its_own_precision(tiny_model: Path, tmp_path: Path) -> None:
    embedder = hub.load(str(write_stock(tiny_model, tmp_path / "stock", "two dense")))
    expected = embedder.encode(TEXTS)
    embedder.to(torch.bfloat16)
    np.testing.assert_allclose(embedder.encode(TEXTS), expected, atol=0.1)


def edited(folder: Path, **changes: object) -> None:
    path = folder / "2_Dense" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation_function": "os.system"}, "'os.system' is none of torch's, and no code"),
        (
            {"activation_function": "torch.nn.nosuch.X"},
            r"read \(No module named .torch.nn.nosuch",
        ),
        ({"activation_function": "torch.nn.init.ones_"}, "must be a torch.nn.Module class"),
        ({"module_input_name": "token_embeddings"}, "only a Dense module from one vector"),
        ({"out_features": 7}, r"can be read \(Error.* size mismatch .*\); copy the folder anew"),
    ],
)
def test_a_dense_module_that_cannot_be_read_is_refused_in_one_line(
    changes: dict[str, object], message: str, tiny_model: Path, tmp_path: Path
) -> None:
    folder = write_stock(tiny_model, tmp_path / "stock", "dense")
    edited(folder, **changes)
    with pytest.raises(UserError, match=message) as refused:
        hub.load(str(folder))
    assert "\n" not in str(refused.value)


def test_a_dense_module_in_a_pickle_is_not_read(tiny_model: Path, tmp_path: Path) -> None:
    folder = write_stock(tiny_model, tmp_path / "stock", "dense")
    weights = folder / "2_Dense" / "model.safetensors"
    weights.rename(weights.with_name("pytorch_model.bin"))
    with pytest.raises(UserError, match="its weights are a pickle"):
        hub.load(str(folder))


def test_a_similarity_that_is_unknown_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    folder = write_stock(tiny_model, tmp_path / "stock", "dot")
    path = folder / "config_sentence_transformers.json"
    path.write_text(path.read_text().replace('"dot"', '"maxsim"'))
    with pytest.raises(UserError, match="similarity_fn_name = 'maxsim'; embedkit knows cosine"):
        hub.load(str(folder))
