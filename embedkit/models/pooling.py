"""Pooling of token states to one vector per text, by names of sentence-transformers or others."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor

from embedkit.errors import UserError
from embedkit.recipe import extensions
from embedkit.recipe.finetune_recipe import POOLINGS, STOCK_POOLINGS
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
    hidden, rows, _ = _pooled(hidden, tokens, include_prompt)
    # If a prompt fills the whole length limit, its text has no token left, and a mean of zero.
    counts = torch.bincount(rows, minlength=len(tokens)).clamp(min=1)
    return _sums(hidden, rows, len(tokens)) / counts.to(hidden.device)[:, None]


def mean_over_sqrt(hidden: Tensor, tokens: TokenBatch, *, include_prompt: bool) -> Tensor:
    """Return the sum of each text's states over the root of their number, ``(B, D)``."""
    hidden, rows, _ = _pooled(hidden, tokens, include_prompt)
    counts = torch.bincount(rows, minlength=len(tokens)).clamp(min=1)
    return _sums(hidden, rows, len(tokens)) / counts.to(hidden)[:, None].sqrt()


def weighted_mean(hidden: Tensor, tokens: TokenBatch, *, include_prompt: bool) -> Tensor:
    """Return the mean of each text's states, the n-th token weighing n (Muennighoff, 2022)."""
    hidden, rows, within = _pooled(hidden, tokens, include_prompt)
    # Positions are those in the whole text, also if its prompt is left out.
    weights = (within + 1).to(hidden)[:, None]
    totals = _sums(weights, rows, len(tokens)).clamp(min=1)
    return _sums(hidden * weights, rows, len(tokens)) / totals


def max_by_text(hidden: Tensor, tokens: TokenBatch, *, include_prompt: bool) -> Tensor:
    """Return the largest value of each feature over a text's states, ``(B, D)``."""
    hidden, rows, _ = _pooled(hidden, tokens, include_prompt)
    # A text without a token after its prompt keeps zeros.
    largest = hidden.new_zeros(len(tokens), hidden.shape[-1])
    index = rows.to(hidden.device)[:, None].expand_as(hidden)
    return largest.scatter_reduce(0, index, hidden, reduce="amax", include_self=False)


def first_by_text(hidden: Tensor, tokens: TokenBatch, *, include_prompt: bool) -> Tensor:
    """Return the state of each text's first token, or of the first after its prompt; ``(B, D)``."""
    first = tokens.offsets[:-1]
    if not include_prompt:
        # As in sentence-transformers, a text without a token after its prompt uses the first token.
        behind = tokens.lengths > tokens.prompt_lengths
        first = torch.where(behind, first + tokens.prompt_lengths, first)
    return _wide(hidden[first.to(hidden.device)])


def last_by_text(hidden: Tensor, tokens: TokenBatch, *, include_prompt: bool) -> Tensor:
    """Return the state of each text's last token, ``(B, D)``; it is no token of the prompt."""
    return _wide(hidden[(tokens.offsets[1:] - 1).to(hidden.device)])


def _pooled(
    hidden: Tensor, tokens: TokenBatch, include_prompt: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the states to pool in fp32 or wider, and their texts and positions, on the CPU."""
    hidden = _wide(hidden)
    rows = torch.arange(len(tokens)).repeat_interleave(tokens.lengths)
    within = torch.arange(tokens.num_tokens) - tokens.offsets[rows]
    if include_prompt:
        return hidden, rows, within
    kept = (within >= tokens.prompt_lengths[rows]).nonzero().squeeze(1)
    return hidden[kept.to(hidden.device)], rows[kept], within[kept]


def _sums(states: Tensor, rows: Tensor, count: int) -> Tensor:
    """Return the sum of the states of each text. Shapes: ``(T, D)`` -> ``(count, D)``."""
    sums = states.new_zeros(count, states.shape[-1])
    return sums.index_add(0, rows.to(states.device), states)


def _wide(states: Tensor) -> Tensor:
    return states.to(torch.promote_types(states.dtype, torch.float32))


_BUILT_IN: Mapping[str, Pooling] = {
    "mean": mean_by_text,
    "cls": first_by_text,
    "lasttoken": last_by_text,
    "max": max_by_text,
    "mean_sqrt_len_tokens": mean_over_sqrt,
    "weightedmean": weighted_mean,
}
assert _BUILT_IN.keys() == set(STOCK_POOLINGS) == STOCK_MODES.keys()


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


def stock_mode(name: str) -> str:
    """Return the name that sentence-transformers has for a pooling.

    Raises:
        UserError: it is not known to have the pooling, so that no model with it can be exported.
    """
    mode: Any = name if name in _BUILT_IN else getattr(pooling_named(name), "stock_mode", None)
    if mode not in STOCK_MODES:
        raise UserError(
            f"pooling {name!r}: stock_mode = {mode!r} is no pooling of sentence-transformers, so "
            f"that the model cannot be exported: set it to one of {', '.join(STOCK_MODES)}, or "
            "choose another embedder.pooling"
        )
    return mode
