"""Masked language modelling objective, which adds the gradients of a step's masked tokens."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from embedkit import distributed
from embedkit.data.text.masked_batches import MaskedBatch
from embedkit.distributed import sharding


@dataclass(frozen=True, slots=True)
class MaskedLMObjective:
    """Mean cross-entropy over the masked tokens of a whole step, however it is divided."""

    micro_batch_tokens: int
    """Number of tokens of one forward pass."""
    max_tokens: int
    """Largest number of tokens of a row."""
    flops: Callable[[Tensor, int], float]
    """Function that returns the floating point operations of a step, given the lengths of its
    sequences and the number of masked tokens."""

    def backward(
        self, model: nn.Module, batch: MaskedBatch, *, key: int, scale: float
    ) -> dict[str, Tensor]:
        """Add ``scale`` times the gradient of the step's loss to the parameters.

        Args:
            model: module from ``(tokens, positions, targets)`` to the summed loss and the number of
                correct predictions.
            batch: this rank's share of the step.
            key: random key of this step on this rank.
            scale: factor of the gradient.

        Returns:
            ``loss``, the mean over the masked tokens of all ranks; ``accuracy``, the share of them
            predicted correctly; ``masked`` and ``tokens``, the numbers of masked and of all tokens;
            ``padding``, the share of the step's rows that no token fills; ``flops`` of all ranks.
        """
        torch.manual_seed(key)
        device = batch.tokens.ids.device
        counts = torch.tensor([len(batch.positions), batch.tokens.num_tokens], device=device)
        masked, tokens = distributed.sum_over_ranks(counts.double())
        # Gradients are averaged over ranks later, so each rank multiplies its sum by world_size.
        share = scale * distributed.world_size() / masked.clamp(min=1)
        flops = self.flops(batch.tokens.lengths, len(batch.positions))
        sums = torch.tensor([0.0, 0.0, flops], device=device, dtype=torch.float64)
        micros = micro_batches(batch, self.micro_batch_tokens)
        for number, rows in enumerate(micros, start=1):
            micro = batch.select(rows)
            sharding.reduce_in_backward(model, number == len(micros))
            loss, right = model(micro.tokens, micro.positions, micro.targets)
            (loss * share).backward()
            sums[:2] += torch.stack([loss.detach().double(), right.double()])
        sums = distributed.sum_over_ranks(sums)
        return {
            "loss": sums[0] / masked.clamp(min=1),
            "accuracy": sums[1] / masked.clamp(min=1),
            "masked": masked,
            "tokens": tokens,
            "padding": 1 - tokens / (batch.rows * self.max_tokens),
            "flops": sums[2],
        }


def micro_batches(batch: MaskedBatch, budget: int) -> list[Tensor]:
    """Split a batch's sequences into parts of about ``budget`` tokens, equally many on all ranks.

    With sharded weights a forward pass is a collective, so that all ranks must take equally many.
    """
    device = batch.tokens.ids.device
    count = distributed.max_over_ranks(-(-batch.tokens.num_tokens // budget), device)
    fewest = -distributed.max_over_ranks(-len(batch.tokens), device)
    return split_evenly(batch.tokens.lengths, min(count, fewest))


def split_evenly(lengths: Tensor, count: int) -> list[Tensor]:
    """Split sequences, sorted by length, into ``count`` non-empty parts of about equal tokens.

    Shapes: ``lengths`` ``(B,)`` with B >= count; each part holds rows in ``range(B)``.
    """
    order = torch.argsort(lengths, descending=True, stable=True)
    ends = lengths[order].cumsum(0)
    parts, start = [], 0
    for number in range(1, count + 1):
        wanted = int(torch.searchsorted(ends, ends[-1] * number / count))
        # Every part, also of those that follow, gets at least one sequence.
        latest = len(order) - (count - number)
        stop = min(max(start + 1, wanted + 1), latest) if number < count else latest
        parts.append(order[start:stop])
        start = stop
    return parts
