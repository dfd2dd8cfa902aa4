"""Masked language modelling: a step's masked tokens in, gradients and metrics out."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from embedkit import distributed
from embedkit.data.text.masked_batches import MaskedBatch
from embedkit.distributed import sharding


class MaskedLMObjective:
    """Cross-entropy over the masked tokens alone, divided by their number in the whole step.

    So neither the number of ranks nor that of micro-batches changes a step, although some hold
    more masked tokens than others.

    Args:
        micro_batch_tokens: tokens of one forward.
        max_tokens: of a row.
        flops: the lengths of sequences, and how many of their tokens are masked, to the floating
            point operations of a step over them.
    """

    def __init__(
        self, micro_batch_tokens: int, max_tokens: int, flops: Callable[[Tensor, int], float]
    ) -> None:
        self._micro_batch_tokens, self._max_tokens, self._flops = (
            micro_batch_tokens,
            max_tokens,
            flops,
        )

    def backward(
        self, model: nn.Module, batch: MaskedBatch, *, key: int, scale: float
    ) -> dict[str, Tensor]:
        """Add ``scale`` times the gradient of the step's loss to the parameters.

        Args:
            model: ``(tokens, positions, targets)`` to the sum of losses and the right guesses.
            batch: this rank's share of the step.
            key: names the randomness of this step on this rank.
            scale: a factor for the gradient.

        Returns:
            ``loss``, the mean over the masked tokens of all ranks; ``accuracy``, the share of them
            that was guessed; ``masked`` and ``tokens``, how many there were; ``padding``, the share
            of the step's rows that no token fills; ``flops`` of all ranks.
        """
        torch.manual_seed(key)
        device = batch.tokens.ids.device
        counts = [float(len(batch.positions)), float(batch.tokens.num_tokens)]
        masked, tokens = distributed.sum_over_ranks(
            torch.tensor(counts, device=device, dtype=torch.float64)
        )
        # Gradients are averaged over ranks later, so each rank's sum counts world_size-fold.
        share = scale * distributed.world_size() / masked.clamp(min=1)
        flops = self._flops(batch.tokens.lengths, len(batch.positions))
        sums = torch.tensor([0.0, 0.0, flops], device=device, dtype=torch.float64)
        micros = micro_batches(batch, self._micro_batch_tokens)
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
            "padding": 1 - tokens / (batch.rows * self._max_tokens),
            "flops": sums[2],
        }


def micro_batches(batch: MaskedBatch, budget: int) -> list[Tensor]:
    """Cut a batch's sequences into parts of about ``budget`` tokens, as many on every rank.

    With sharded weights a forward is a collective, so no rank may take one more than the others.
    """
    device = batch.tokens.ids.device
    count = distributed.max_over_ranks(-(-batch.tokens.num_tokens // budget), device)
    fewest = -distributed.max_over_ranks(-len(batch.tokens), device)
    return cut_evenly(batch.tokens.lengths, min(count, fewest))


def cut_evenly(lengths: Tensor, count: int) -> list[Tensor]:
    """Cut sequences, sorted by length, into ``count`` parts of about as many tokens, none empty.

    Shapes: ``lengths`` ``(B,)`` with B >= count; each part holds rows in ``range(B)``.
    """
    order = torch.argsort(lengths, descending=True, stable=True)
    ends = lengths[order].cumsum(0)
    parts, start = [], 0
    for number in range(1, count + 1):
        wanted = int(torch.searchsorted(ends, ends[-1] * number / count))
        latest = len(order) - (count - number)
        stop = min(max(start + 1, wanted + 1), latest) if number < count else len(order)
        parts.append(order[start:stop])
        start = stop
    return parts
