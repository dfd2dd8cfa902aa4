"""Export of an ``Embedder`` as an ONNX graph from padded tokens to hidden states and vectors."""

import logging
import warnings
from copy import copy, deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedConfig, PreTrainedModel

from embedkit.errors import UserError
from embedkit.models.embedder import Embedder
from embedkit.models.eurobert import obstacle, to_eurobert
from embedkit.models.neobert import NeoBERTModel
from embedkit.tokens.tokenizer import Tokenize

GRAPH = "onnx/model.onnx"
"""Path at which sentence-transformers, optimum and text-embeddings-inference look for a graph."""
_TOLERANCE = 1e-4
"""Largest difference of a feature, relative to the norm of vectors that are longer than 1."""
_TRIALS = [["a text"], ["another", "one that is longer", ""], ["word " * 150, "a", "b", "c d e"]]
_ONE_FILE = 1_900_000_000
"""Largest size of weights, in bytes, to store in the graph's file, which is limited to 2 GB."""


def check_installed() -> None:
    """Raise UserError if a package that writing a graph needs is not installed."""
    needed = ("onnx", "onnxscript", "onnxruntime")
    if missing := ", ".join(name for name in needed if find_spec(name) is None):
        raise UserError(f'onnx: {missing} not installed: pip install "embedkit-neobert[onnx]"')


def write_onnx(embedder: Embedder, folder: Path) -> None:
    """Write ``onnx/model.onnx`` and the ``config.json`` by which other libraries open it.

    The graph takes any number of texts of any length, and its vectors are verified.

    Shapes: inputs ``input_ids`` and ``attention_mask`` ``(B, L)`` int64, padded on the right;
    outputs ``last_hidden_state`` ``(B, L, D)`` and, pooled and behind the head,
    ``sentence_embedding`` ``(B, E)``.

    Raises:
        UserError: the model's computation cannot be written as a graph, or the graph's vectors
            differ from the model's.
    """
    from sentence_transformers.util import disable_logging

    name, pooling = embedder.name, embedder.pooling
    if not embedder.include_prompt and any(embedder.prompts.values()):
        raise UserError(f"{name}: pools without its prompt, whose length a graph cannot know")
    if pooling not in ("mean", "cls"):
        raise UserError(f"{name}: pools by {pooling!r}; a graph can pool by mean or cls")
    network: nn.Module = embedder.backbone.model
    if isinstance(network, NeoBERTModel):
        # A graph has to read padded tokens, which a NeoBERT does not.
        if reason := obstacle(network.config):
            raise UserError(f"{name}: has no ONNX form: {reason}")
        network = to_eurobert(network)
    config = _config(embedder.backbone.model)
    graph = _Graph(network, embedder).float().cpu().eval()
    # The sizes must not be 1, which the exporter takes for a constant, nor equal.
    ids = torch.ones(2, 7, dtype=torch.int64)
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    # The exporter warns of torch itself and of packages that it could use.
    with disable_logging(logging.WARNING), warnings.catch_warnings(action="ignore"):
        try:
            program = torch.onnx.export(
                graph,
                (ids, mask),
                dynamo=True,
                opset_version=18,
                input_names=["input_ids", "attention_mask"],
                output_names=["last_hidden_state", "sentence_embedding"],
                dynamic_shapes=({0: batch, 1: length}, {0: batch, 1: length}),
                verbose=False,
            )
        except torch.onnx.OnnxExporterError:
            kind = embedder.backbone.model.config.model_type
            raise UserError(
                f"{name}: torch cannot write a {kind} as a graph; --to sentence-transformers "
                "writes any model"
            ) from None
        assert program is not None
        size = sum(weight.nbytes for weight in graph.parameters())
        path = folder / GRAPH
        path.parent.mkdir()
        program.save(str(path), external_data=size > _ONE_FILE)
    _try_out(embedder, path)
    config.save_pretrained(folder)


def _config(network: PreTrainedModel) -> PreTrainedConfig:
    """Return the settings of the graph's network, of a type that optimum's transformers knows.

    optimum 2 reads the file with transformers 4, which has no EuroBERT. The graph is all that
    computes, so that a NeoBERT goes by the nearest older type, with the same sizes; a folder with
    weights must not, since Llama reads in one direction.
    """
    if not isinstance(network, NeoBERTModel):
        config = deepcopy(network.config)
        config.dtype = torch.float32
        return config
    own = network.config
    return LlamaConfig(
        architectures=["LlamaBidirectionalModel"],
        vocab_size=own.vocab_size,
        hidden_size=own.hidden_size,
        intermediate_size=own.ffn_width,
        num_hidden_layers=own.num_hidden_layers,
        num_attention_heads=own.num_attention_heads,
        max_position_embeddings=own.max_position_embeddings,
        rms_norm_eps=own.norm_eps,
        rope_parameters=dict(own.rope_parameters or {}),
        pad_token_id=own.pad_token_id,
        bos_token_id=None,
        eos_token_id=None,
        dtype=torch.float32,
    )


def _try_out(embedder: Embedder, path: Path) -> None:
    """Raise UserError if vectors of onnxruntime and the embedder differ on several test batches."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path))
    tokenize = Tokenize(embedder.tokenizer)
    pad_id = embedder.tokenizer.pad_token_id or 0
    # Its texts are embedkit's own, so that prompts of the training are beside the point.
    subject = copy(embedder)
    subject.trained_prompts = None
    for texts in _TRIALS:
        input_ids, mask = tokenize(texts, "", embedder.max_tokens).padded(pad_id)
        inputs = {"input_ids": input_ids.numpy(), "attention_mask": mask.numpy()}
        (vectors,) = session.run(["sentence_embedding"], inputs)
        expected = subject.encode(texts, prompt="")
        distance = float(np.abs(vectors - expected).max())
        if not distance <= _TOLERANCE * max(1.0, float(np.linalg.norm(expected, axis=-1).max())):
            raise UserError(
                f"{embedder.name}: its graph gives other vectors, by up to {distance:.1g}; load it "
                "with dtype fp32, or export it in another form"
            )


class _Graph(nn.Module):
    def __init__(self, network: nn.Module, embedder: Embedder) -> None:
        super().__init__()
        self.network, self.head = network, embedder.head
        self._pooling, self._width = embedder.pooling, embedder.truncate_dim

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        output: Any = self.network(input_ids=input_ids, attention_mask=attention_mask)
        hidden: Tensor = output.last_hidden_state
        pooled = hidden[:, 0]
        if self._pooling == "mean":
            mask = attention_mask[:, :, None].to(hidden.dtype)
            pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
        return hidden, self.head(pooled)[:, : self._width]
