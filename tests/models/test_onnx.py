import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from support.tiny_neobert import YARN, tiny_neobert, write_with_tokenizer
from transformers import AutoConfig, AutoTokenizer

from embedkit.errors import UserError
from embedkit.models import hub, onnx
from embedkit.models.embedder import Embedder
from embedkit.models.export import export
from embedkit.models.model_files import read_json
from embedkit.models.trained_prompts import TrainedPrompts
from embedkit.recipe import ModelSettings
from embedkit.storage.folders import check_replaceable

BATCHES = [
    ["Fever with chills"],
    ["one", "", "two words"],
    ["def add(a, b): return a + b", "word " * 90, "a b c", "d", "longer than that by a few words"],
]


def check(embedder: Embedder, folder: Path) -> None:
    """The graph gives the embedder's vectors for batches of several sizes and lengths."""
    session = onnxruntime.InferenceSession(str(folder / "onnx" / "model.onnx"))
    assert [each.name for each in session.get_inputs()] == ["input_ids", "attention_mask"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for texts in BATCHES:
        batch = tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=embedder.max_tokens,
            return_tensors="np",
        )
        inputs = {name: batch[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
        hidden, vectors = session.run(["last_hidden_state", "sentence_embedding"], inputs)
        assert hidden.shape == (*inputs["input_ids"].shape, embedder.backbone.width)
        np.testing.assert_allclose(vectors, embedder.encode(texts), atol=1e-5)
    modules = [entry["type"].split(".")[-1] for entry in read_json(folder / "modules.json", list)]
    assert modules == ["Transformer", "Pooling", *(each.kind for each in embedder.head)]
    config = AutoConfig.from_pretrained(folder)
    assert (config.hidden_size, config.vocab_size) == (
        embedder.backbone.width,
        embedder.backbone.model.config.vocab_size,
    )
    with pytest.raises(UserError, match="holds an ONNX graph and no weights"):
        hub.load(str(folder))


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"rope_parameters": YARN}], ids=["plain", "yarn"])
def test_a_neobert_is_the_same_as_a_graph(changes: dict[str, object], tmp_path: Path) -> None:
    own = write_with_tokenizer(tiny_neobert(**changes), tmp_path / "own")
    embedder = hub.load(str(own))
    check(embedder, export(embedder, tmp_path / "graph", to="onnx"))
    check_replaceable(tmp_path / "graph", "a model")
    (tmp_path / "graph" / "labels.json").write_text("{}")
    with pytest.raises(UserError, match=r"changed: labels\.json; move them elsewhere"):
        export(embedder, tmp_path / "graph", to="onnx", overwrite=True)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_any_encoder_is_the_same_as_a_graph(tiny_model: Path, pooling: str, tmp_path: Path) -> None:
    settings = ModelSettings.model_validate({"pooling": pooling})
    embedder = hub.load(str(tiny_model), settings=settings)
    embedder.trained_prompts = TrainedPrompts({"query": ["find: "], "document": ["page: "]})
    folder = export(embedder, tmp_path / "graph", to="onnx")
    # The export has not warned of its own texts, which were read without a prompt.
    assert embedder.trained_prompts.new([("text", "")])
    check(embedder, folder)


@pytest.mark.slow
def test_a_graph_that_gives_other_vectors_is_not_left_behind(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx, "_TOLERANCE", 0.0)
    with pytest.raises(UserError, match=r"its graph gives other vectors, by up to .e-0"):
        export(str(tiny_model), tmp_path / "graph", to="onnx")
    assert not list(tmp_path.iterdir())


def test_what_is_missing_is_named_with_its_remedy(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"onnxscript not installed: pip install .*\[onnx\]"):
        export(str(tiny_model), tmp_path / "graph", to="onnx")


def test_a_pooling_that_a_graph_cannot_know_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    embedder = hub.load(str(tiny_model), settings=ModelSettings(include_prompt=False))
    embedder.prompts = {"query": "find: "}
    with pytest.raises(UserError, match="pools without its prompt"):
        export(embedder, tmp_path / "graph", to="onnx")
    assert not (tmp_path / "graph").exists()


def test_an_ablation_has_no_graph(tmp_path: Path) -> None:
    own = write_with_tokenizer(tiny_neobert(norm="layernorm"), tmp_path / "own")
    with pytest.raises(UserError, match="has no ONNX form: its norm is layernorm"):
        export(str(own), tmp_path / "graph", to="onnx")


def test_what_torch_cannot_write_as_a_graph_is_refused_in_one_line(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_given: object, **_options: object) -> None:
        raise torch.onnx.OnnxExporterError("Failed to decompose.\nNext steps: ...")

    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(UserError, match="torch cannot write a bert as a graph; --to sentence-"):
        export(str(tiny_model), tmp_path / "graph", to="onnx")
    assert not (tmp_path / "graph").exists()
