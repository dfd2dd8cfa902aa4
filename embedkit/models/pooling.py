"""One vector of the states of a text's tokens."""

import torch
from torch import Tensor

from embedkit.tokens.batch import TokenBatch


def mean_by_text(hidden: Tensor, tokens: TokenBatch, *, include_prompt: bool) -> Tensor:
    """The mean of each text's states, ``(T, D)`` -> ``(B, D)``, in fp32 or wider."""
    hidden = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
    rows = torch.arange(len(tokens)).repeat_interleave(tokens.lengths)
    if not include_prompt:
        within = torch.arange(tokens.num_tokens) - tokens.offsets[rows]
        kept = (within >= tokens.prompt_lengths[rows]).nonzero().squeeze(1)
        rows, hidden = rows[kept], hidden[kept.to(hidden.device)]
    # A text that its prompt has pushed out altogether has no token left, and a mean of zero.
    counts = torch.bincount(rows, minlength=len(tokens)).clamp(min=1)
    sums = hidden.new_zeros(len(tokens), hidden.shape[-1])
    sums = sums.index_add(0, rows.to(hidden.device), hidden)
    return sums / counts.to(hidden.device)[:, None]


def first_by_text(hidden: Tensor, tokens: TokenBatch, *, include_prompt: bool) -> Tensor:
    """The state of each text's first token, or of the first behind its prompt; ``(B, D)``."""
    first = tokens.offsets[:-1]
    if not include_prompt:
        # As in sentence-transformers, also for a text that its prompt has pushed out altogether.
        behind = tokens.lengths > tokens.prompt_lengths
        first = torch.where(behind, first + tokens.prompt_lengths, first)
    return hidden[first.to(hidden.device)].to(torch.promote_types(hidden.dtype, torch.float32))
