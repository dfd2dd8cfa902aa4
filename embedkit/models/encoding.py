"""Any number of texts to vectors, a few tokens at a time."""

import reprlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from embedkit.errors import UserError
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
    texts: str | Sequence[str],
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
    """The vectors of texts, each behind ``prompt``: ``(len(texts), width)``, ``(width,)`` of a str.

    Args:
        texts: one, or a list of any number.
        prompt: what stands before each.
        embed: tokens on the device to vectors.
        tokenize: texts to tokens.
        width: of a vector.
        max_tokens: where a text is cut, special tokens included.
        device: where ``embed`` works.
        overhead: positions that a text costs besides its tokens.
        show_progress: draw a bar.

    Raises:
        UserError: something else than texts is given.
    """
    from rich.progress import track

    listed = _listed(texts)
    vectors = np.empty((len(listed), width), dtype=np.float32)
    starts = range(0, len(listed), _TEXTS)
    for start in track(starts, "encode", disable=not show_progress, transient=True):
        tokens = tokenize(listed[start : start + _TEXTS], prompt, max_tokens)
        for rows in chunks_by_budget(tokens.lengths + overhead, _TOKENS):
            chunk = tokens.select(rows).to(device)
            vectors[start + rows.numpy()] = embed(chunk).float().cpu().numpy()
    return vectors[0] if isinstance(texts, str) else vectors


def _listed(texts: str | Sequence[str]) -> list[str]:
    """Return one text as a list of it, and a list or an array of texts as a list."""
    if isinstance(texts, str):
        return [texts]
    if isinstance(texts, bytes) or not isinstance(texts, Sequence | np.ndarray):
        raise UserError(f"texts = {reprlib.repr(texts)}: pass a str or a list of str")
    listed = list(texts)
    for row, text in enumerate(listed):
        if not isinstance(text, str):
            raise UserError(f"texts[{row}] = {reprlib.repr(text)}: every text must be a str")
    return listed
