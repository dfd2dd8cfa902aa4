"""Builds this rank's part of a step of masked text, which the masked LM objective reads."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from embedkit import distributed, rng
from embedkit.data.batch_sampler import BatchSampler
from embedkit.data.text.packing import Ids, Rows
from embedkit.recipe import MaskedLM
from embedkit.tokens.batch import TokenBatch
from embedkit.tokens.vocabulary import Vocabulary

_MASKED, _RANDOM = 0.8, 0.9
"""In the 80/10/10 scheme, tokens drawn below the first become [MASK], and those between the two a
random token."""


@dataclass(frozen=True, slots=True, eq=False)
class MaskedBatch:
    """Sequences as the model sees them, and what it is to guess.

    Shapes: ``positions`` ``(M,)`` are the indices in ``tokens.ids`` to guess at, in order, and
    ``targets`` ``(M,)`` the ids that stood there. M may be 0.
    """

    source: str
    """Names of the sources that this step reads over all ranks, comma-separated."""
    tokens: TokenBatch
    positions: Tensor
    targets: Tensor
    rows: int
    """Number of rows of the step over all ranks. A row may be several sequences."""

    def to(self, device: torch.device) -> Self:
        positions = self.positions.to(device, non_blocking=True)
        targets = self.targets.to(device, non_blocking=True)
        return replace(self, tokens=self.tokens.to(device), positions=positions, targets=targets)

    def select(self, sequences: Tensor) -> Self:
        """Return the sequences of these numbers, each at most once, in that order."""
        # The target of every token, or -1.
        targets = torch.full_like(self.tokens.ids, -1)
        targets[self.positions] = self.targets
        targets = targets[self.tokens.positions(sequences).to(targets.device)]
        positions = (targets >= 0).nonzero().squeeze(1)
        tokens = self.tokens.select(sequences)
        return replace(self, tokens=tokens, positions=positions, targets=targets[positions])


@dataclass(frozen=True, slots=True)
class Masking:
    """Turns sequences into what the model sees and what it is to guess."""

    vocabulary: Vocabulary
    objective: MaskedLM

    def batch(self, rows: Iterable[tuple[list[Ids], int]], source: str, count: int) -> MaskedBatch:
        """Return a batch of rows, each with the key of its random numbers."""
        inputs, positions, targets = [], [], []
        lengths, start = [0], 0
        for row, key in rows:
            ids = np.concatenate(row)
            seen, drawn = self.mask(ids, key)
            inputs.append(seen)
            positions.append(drawn + start)
            targets.append(ids[drawn])
            lengths += map(len, row)
            start += len(ids)
        offsets = torch.tensor(lengths).cumsum(0)
        tokens = TokenBatch(_tensor(inputs), offsets, torch.zeros_like(offsets[1:]))
        return MaskedBatch(source, tokens, _tensor(positions), _tensor(targets), count)

    def mask(self, ids: Ids, key: int) -> tuple[Ids, Ids]:
        """Draw by ``key`` the tokens to be guessed: the ids that the model sees, and their indices.

        Shapes: ``ids`` ``(T,)``; the result ``(T,)`` and ``(M,)``, in order.
        """
        maskable = ~np.isin(ids, self.vocabulary.special)
        drawn = rng.uniform(len(ids), rng.fold_in(key, "guess"))
        positions = np.flatnonzero(maskable & (drawn < self.objective.rate))
        seen = ids.copy()
        seen[positions] = self.vocabulary.mask
        if self.objective.replace == "80/10/10":
            fate = rng.uniform(len(ids), rng.fold_in(key, "fate"))[positions]
            random = positions[(fate >= _MASKED) & (fate < _RANDOM)]
            choice = rng.uniform(len(ids), rng.fold_in(key, "random"))[random]
            ordinary = self.vocabulary.ordinary
            seen[random] = ordinary[(choice * len(ordinary)).astype(np.int64)]
            kept = positions[fate >= _RANDOM]
            seen[kept] = ids[kept]
        return seen, positions


class MaskedBatches(Dataset[MaskedBatch]):
    """Maps a step to this rank's part of its rows, masked; ``draws`` batches make a step."""

    def __init__(
        self, sampler: BatchSampler, rows: Sequence[Rows], masking: Masking, *,
        draws: int, seed: int,
    ) -> None:  # fmt: skip
        self._sampler, self._rows, self._masking = sampler, rows, masking
        self._draws, self._seed = draws, seed
        # Kept here, since spawned workers are no ranks.
        self._rank, self._world_size = distributed.rank(), distributed.world_size()

    def __len__(self) -> int:
        return len(self._sampler) // self._draws

    def __getitem__(self, step: int) -> MaskedBatch:
        draws = [self._sampler[step * self._draws + number] for number in range(self._draws)]
        whole = [(draw.source, int(row)) for draw in draws for row in draw.rows]
        share = distributed.share_of(len(whole), self._rank, self._world_size)
        keyed_rows = (
            (self._rows[source][row], rng.fold_in(self._seed, "mask", step, index))
            for index, (source, row) in list(enumerate(whole))[share]
        )
        names = dict.fromkeys(self._sampler.sources[draw.source].name for draw in draws)
        return self._masking.batch(keyed_rows, ", ".join(names), len(whole))


def fixed_batch(name: str, rows: Rows, masking: Masking, count: int) -> MaskedBatch:
    """Return this rank's part of ``count`` rows, or of all, masked alike in every run.

    Where there are fewer rows than ranks, every rank has all of them, so that none has nothing.
    """
    count = min(count, len(rows))
    mine = rng.permuted(np.arange(count), len(rows), rng.fold_in("held-out rows", name))
    if count >= distributed.world_size():
        mine = mine[distributed.share_of(count, distributed.rank(), distributed.world_size())]
    keyed_rows = ((rows[int(row)], rng.fold_in("held-out mask", name, int(row))) for row in mine)
    return masking.batch(keyed_rows, name, count)


def _tensor(parts: list[Ids]) -> Tensor:
    return torch.from_numpy(np.concatenate([np.empty(0, dtype=np.int64), *parts]))
