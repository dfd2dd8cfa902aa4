"""A NeoBERT small enough to compare number by number."""

from typing import Any

import torch
from support.neobert_reference import Shape
from torch import Tensor

from embedkit.models.neobert import NeoBERTConfig, NeoBERTForMaskedLM, NeoBERTModel
from embedkit.tokens.batch import TokenBatch

SEQUENCES = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15], [16, 17, 18], [19, 20, 21, 22], [23]]


def small_config(shape: Shape | None = None, **changes: Any) -> NeoBERTConfig:
    """The config of ``Shape``; its initial weights are wide, so that tokens tell apart."""
    shape = shape or Shape()
    settings: dict[str, Any] = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.inner * 3 // 2,
        "embedding_init_range": 1.0,
        "decoder_init_range": 0.3,
        "classifier_init_range": 0.3,
    }
    return NeoBERTConfig(**settings | changes)


def small_encoder(**changes: Any) -> NeoBERTModel:
    """A random encoder in double precision, the same at every call."""
    return _seeded(NeoBERTModel, **changes)


def small_lm(**changes: Any) -> NeoBERTForMaskedLM:
    """A random masked language model in double precision, the same at every call."""
    return _seeded(NeoBERTForMaskedLM, **changes)


def _seeded(kind: Any, **changes: Any) -> Any:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return kind(small_config(**changes)).double().eval()


def batch(sequences: list[list[int]] | None = None) -> TokenBatch:
    return TokenBatch.from_lists(SEQUENCES if sequences is None else sequences)


def padded(sequences: list[list[int]] | None = None) -> dict[str, Tensor]:
    """The same sequences as padded input of a model."""
    input_ids, attention_mask = batch(sequences).padded(0)
    return {"input_ids": input_ids, "attention_mask": attention_mask}
