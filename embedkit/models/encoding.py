"""Any number of texts to vectors, a few tokens at a time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from embedkit.tokens.batch import TokenBatch, chunks_by_budget
from embedkit.tokens.tokenizer import Tokenize

_TOKENS = 16_384
"""Of one forward."""
_TEXTS = 8_192
"""Tokenized and sorted by length at a time."""


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Have a model that may be in training encode, and train on as before whatever happens."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def embed_texts(
    texts: Sequence[str],
    prompt: str,
    embed: Callable[[TokenBatch], Tensor],
    tokenize: Tokenize,
    *,
    width: int,
    max_tokens: int,
    device: torch.device,
    overhead: int = 0,
    show_progress: bool = False,
) -> NDArray[np.float32]:
    """The vectors of texts, each behind ``prompt``; ``(len(texts), width)``.

    Args:
        texts: in any number.
        prompt: what stands before each.
        embed: tokens on the device to vectors.
        tokenize: texts to tokens.
        width: of a vector.
        max_tokens: where a text is cut, special tokens included.
        device: where ``embed`` works.
        overhead: positions that a text costs besides its tokens.
        show_progress: draw a bar.
    """
    from rich.progress import track

    vectors = np.empty((len(texts), width), dtype=np.float32)
    starts = range(0, len(texts), _TEXTS)
    for start in track(starts, "encode", disable=not show_progress, transient=True):
        tokens = tokenize(texts[start : start + _TEXTS], prompt, max_tokens)
        for rows in chunks_by_budget(tokens.lengths + overhead, _TOKENS):
            chunk = tokens.select(rows).to(device)
            vectors[start + rows.numpy()] = embed(chunk).float().cpu().numpy()
    return vectors
