"""Embedding of any number of texts, in chunks with a limited number of tokens."""

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
"""Number of tokens in one forward pass."""
_TEXTS = 8_192
"""Number of texts that are tokenized and sorted by length at a time."""


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation mode, and restore its mode at the end, even after an error."""
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
    """Return the vectors of texts: ``(len(texts), width)``, or ``(width,)`` for a single str.

    Args:
        texts: one text, or a list of any number of texts.
        prompt: literal prefix of each text.
        embed: function that maps tokens on the device to vectors.
        tokenize: tokenizer of the model.
        width: number of features of a vector.
        max_tokens: length to which texts are truncated, special tokens included.
        device: device on which ``embed`` computes.
        overhead: number of positions in front of every text.
        show_progress: whether to show a progress bar.

    Raises:
        UserError: ``texts`` holds something other than texts.
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
    """Return ``texts`` as a list; raise UserError if it is not a text or a list of texts."""
    if isinstance(texts, str):
        return [texts]
    if isinstance(texts, bytes) or not isinstance(texts, Sequence | np.ndarray):
        raise UserError(f"texts = {reprlib.repr(texts)}: pass a str or a list of str")
    listed = list(texts)
    for row, text in enumerate(listed):
        if not isinstance(text, str):
            raise UserError(f"texts[{row}] = {reprlib.repr(text)}: every text must be a str")
    return listed
