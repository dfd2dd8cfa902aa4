"""Embedding of any number of texts, in chunks with a limited number of tokens."""

import reprlib
from collections.abc import Callable, Sequence
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from embedkit.errors import UserError
from embedkit.models.embedding_model import EmbeddingModel, Role
from embedkit.tokens.batch import TokenBatch, chunks_by_budget
from embedkit.tokens.tokenizer import Tokenize

_TOKENS = 16_384
"""Number of tokens in one forward pass."""
_TEXTS = 8_192
"""Number of texts that are tokenized and sorted by length at a time."""


def embed_texts(
    model: EmbeddingModel,
    texts: str | Sequence[str],
    prompt: str,
    embed: Callable[[TokenBatch], Tensor],
    *,
    max_tokens: int | None = None,
    overhead: int = 0,
    show_progress: bool,
) -> NDArray[np.float32]:
    """Return the vectors that ``embed`` makes of the tokens of texts, with ``model`` in eval mode.

    ``overhead`` is the number of positions in front of every text; the other arguments are those of
    ``EmbeddingModel.encode``.

    Raises:
        UserError: ``texts`` holds something other than texts, or ``max_tokens`` is below 1.
    """
    from rich.progress import track

    assert isinstance(model, nn.Module)
    listed = _listed(texts)
    if max_tokens is not None and max_tokens < 1:
        raise UserError(f"max_tokens = {max_tokens}: pass a number of tokens of 1 or more")
    limit = model.max_tokens if max_tokens is None else min(max_tokens, model.max_tokens)
    tokenize, was_training = Tokenize(model.tokenizer), model.training
    vectors = np.empty((len(listed), model.width), dtype=np.float32)
    model.eval()
    try:
        starts = range(0, len(listed), _TEXTS)
        for start in track(starts, "encode", disable=not show_progress, transient=True):
            tokens = tokenize(listed[start : start + _TEXTS], prompt, limit)
            for rows in chunks_by_budget(tokens.lengths + overhead, _TOKENS):
                chunk = tokens.select(rows).to(model.device)
                vectors[start + rows.numpy()] = embed(chunk).float().cpu().numpy()
    finally:
        model.train(was_training)
    return vectors[0] if isinstance(texts, str) else vectors


def prompt_of(model: EmbeddingModel, role: str | None) -> str:
    """Return the prompt that a model stores for a role, "" if it stores none.

    Raises:
        UserError: ``role`` is neither a role of retrieval nor the name of a stored prompt.
    """
    if role is None:
        return ""
    if role not in get_args(Role) and role not in model.prompts:
        known = ", ".join(dict.fromkeys([*get_args(Role), *model.prompts]))
        raise UserError(f"role = {role!r}: {model.name} knows {known}")
    return model.prompts.get(role, "")


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
