"""Export of an ``Embedder`` as an ONNX graph from padded tokens to vectors."""

import logging
import warnings
from copy import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embedkit.errors import UserError
from embedkit.models.embedder import Embedder
from embedkit.models.eurobert import obstacle, to_eurobert
from embedkit.models.neobert import NeoBERTModel
from embedkit.tokens.tokenizer import Tokenize

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


def write_onnx(embedder: Embedder, path: Path) -> None:
    """Write the graph of ``embedder``, for any number of texts of any length, and verify it.

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
        program.save(str(path), external_data=size > _ONE_FILE)
    _try_out(embedder, path)


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
