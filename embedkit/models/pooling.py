"""Pooling of token states to one vector per text: mean, cls, or another distribution's."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from embedkit.errors import UserError
from embedkit.recipe import extensions
from embedkit.recipe.finetune_recipe import POOLINGS
from embedkit.tokens.batch import TokenBatch

STOCK_MODES: Mapping[str, str] = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
"""Poolings of sentence-transformers by name, with the setting that turns each on."""


class Pooling(Protocol):
    """Interface of a pooling: a function, or an object that is called like one.

    A model can be exported if its pooling's optional attribute ``stock_mode``, one of
    ``STOCK_MODES``, names the same pooling in sentence-transformers.
    """

    def __call__(self, hidden: Tensor, tokens: TokenBatch, *, include_prompt: bool) -> Tensor:
        """Return a vector for each text. Shapes: hidden ``(T, D)`` -> ``(B, D)``."""
        ...


def mean_by_text(hidden: Tensor, tokens: TokenBatch, *, include_prompt: bool) -> Tensor:
    """Return the mean of each text's states, ``(T, D)`` -> ``(B, D)``, in fp32 or wider."""
    hidden = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
    rows = torch.arange(len(tokens)).repeat_interleave(tokens.lengths)
    if not include_prompt:
        within = torch.arange(tokens.num_tokens) - tokens.offsets[rows]
        kept = (within >= tokens.prompt_lengths[rows]).nonzero().squeeze(1)
        rows, hidden = rows[kept], hidden[kept.to(hidden.device)]
    # If a prompt fills the whole length limit, its text has no token left, and a mean of zero.
    counts = torch.bincount(rows, minlength=len(tokens)).clamp(min=1)
    sums = hidden.new_zeros(len(tokens), hidden.shape[-1])
    sums = sums.index_add(0, rows.to(hidden.device), hidden)
    return sums / counts.to(hidden.device)[:, None]


def first_by_text(hidden: Tensor, tokens: TokenBatch, *, include_prompt: bool) -> Tensor:
    """Return the state of each text's first token, or of the first after its prompt; ``(B, D)``."""
    first = tokens.offsets[:-1]
    if not include_prompt:
        # As in sentence-transformers, a text without a token after its prompt uses the first token.
        behind = tokens.lengths > tokens.prompt_lengths
        first = torch.where(behind, first + tokens.prompt_lengths, first)
    return hidden[first.to(hidden.device)].to(torch.promote_types(hidden.dtype, torch.float32))


_BUILT_IN: Mapping[str, Pooling] = {"mean": mean_by_text, "cls": first_by_text}


@lru_cache
def pooling_named(name: str) -> Pooling:
    """Return embedkit's pooling of that name, or the one that a distribution registers."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    if point := extensions.find(POOLINGS, name):
        return extensions.load(point)
    known = ", ".join([*_BUILT_IN, *extensions.names(POOLINGS)])
    raise UserError(f"pooling {name!r}: the poolings known are {known}")


def identity_of_pooling(name: str) -> str:
    """Return a string that identifies the version of a pooling's code; "" for embedkit's own."""
    point = None if name in _BUILT_IN else extensions.find(POOLINGS, name)
    return "" if point is None else extensions.identity(point)


def stock_mode_of(name: str) -> str | None:
    """Return the name that sentence-transformers has for a pooling, or ``None`` if it has none."""
    mode = name if name in _BUILT_IN else getattr(pooling_named(name), "stock_mode", None)
    if mode is not None and mode not in STOCK_MODES:
        raise UserError(
            f"pooling {name!r}: stock_mode = {mode!r} is none of sentence-transformers' "
            f"{', '.join(STOCK_MODES)}"
        )
    return mode


def pooling_with_stock_mode(mode: str) -> str | None:
    """Return the name of the pooling that sentence-transformers calls ``mode``, or ``None``."""
    known = [*_BUILT_IN, *extensions.names(POOLINGS)]
    return next((name for name in known if stock_mode_of(name) == mode), None)
