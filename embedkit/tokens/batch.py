"""``TokenBatch``: token ids of many sequences, concatenated without padding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """Token ids of B sequences, which have T tokens in all.

    Shapes: ``ids`` ``(T,)`` int64; ``offsets`` ``(B + 1,)`` int64, on the CPU: sequence ``i`` is
    ``ids[offsets[i]:offsets[i + 1]]``; ``prompt_lengths`` ``(B,)`` int64, on the CPU: number of
    each sequence's first tokens that belong to the prompt.
    """

    ids: Tensor
    offsets: Tensor
    prompt_lengths: Tensor

    @classmethod
    def from_lists(
        cls, sequences: Sequence[Sequence[int]], prompt_lengths: Sequence[int] | None = None
    ) -> Self:
        """Concatenate lists of token ids; ``prompt_lengths`` is 0 by default."""
        lengths = torch.tensor([0, *(len(sequence) for sequence in sequences)])
        flat = [token for sequence in sequences for token in sequence]
        prompts = [0] * len(sequences) if prompt_lengths is None else prompt_lengths
        return cls(torch.tensor(flat, dtype=torch.int64), lengths.cumsum(0), torch.tensor(prompts))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Tensor:
        """Number of tokens of each sequence, ``(B,)``, on the CPU."""
        return self.offsets.diff()

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    def padded_tokens(self, overhead: int = 0) -> int:
        """Return the tokens of all sequences as long as the longest, ``overhead`` in each."""
        return len(self) * (int(self.lengths.max()) + overhead) if len(self) else 0

    def to(self, device: torch.device) -> Self:
        """Return the batch with its ids on ``device``; offsets stay on the CPU, where loops run."""
        return type(self)(self.ids.to(device, non_blocking=True), self.offsets, self.prompt_lengths)

    def positions(self, rows: Tensor) -> Tensor:
        """Return indices into ``ids`` of all tokens of the sequences ``rows``, on the CPU."""
        starts, lengths = self.offsets[rows], self.lengths[rows]
        ends = lengths.cumsum(0)
        within = torch.arange(int(lengths.sum())) - (ends - lengths).repeat_interleave(lengths)
        return starts.repeat_interleave(lengths) + within

    def select(self, rows: Tensor) -> Self:
        """Return a batch of the sequences ``rows``, in that order."""
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), self.lengths[rows].cumsum(0)])
        picked = self.positions(rows).to(self.ids.device)
        return type(self)(self.ids[picked], offsets, self.prompt_lengths[rows])

    def padded(self, pad_id: int) -> tuple[Tensor, Tensor]:
        """Return ``(input_ids, attention_mask)``, both ``(B, longest)``, padded on the right."""
        lengths = self.lengths
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        mask = mask.to(self.ids.device)
        input_ids = self.ids.new_full(mask.shape, pad_id).masked_scatter(mask, self.ids)
        return input_ids, mask.to(torch.int64)


def chunks_by_budget(lengths: Tensor, budget: int | None) -> list[Tensor]:
    """Split sequences, sorted by length, into chunks of at most ``budget`` tokens once padded.

    A sequence longer than the budget makes a chunk by itself. A budget of ``None`` makes one chunk.

    Shapes: ``lengths`` ``(B,)``; each chunk holds rows in ``range(B)``, longest first.
    """
    order = torch.argsort(lengths, descending=True, stable=True)
    if budget is None:
        return [order]
    chunks, start = [], 0
    while start < len(order):
        size = max(1, budget // max(1, int(lengths[order[start]])))
        chunks.append(order[start : start + size])
        start += size
    return chunks
