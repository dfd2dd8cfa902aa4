"""This rank's part of a step of masked text: what the masked LM objective reads."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from embedkit import distributed, rng
from embedkit.data.batch_sampler import BatchSampler
from embedkit.data.text.masking import mask
from embedkit.data.text.packing import Ids, Rows
from embedkit.recipe import MaskedLM
from embedkit.tokens.batch import TokenBatch
from embedkit.tokens.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, eq=False)
class MaskedBatch:
    """Sequences as the model sees them, and what it is to guess.

    Shapes: ``positions`` ``(M,)`` are the places in ``tokens.ids`` to guess at, in order, and
    ``targets`` ``(M,)`` the ids that stood there. M may be 0.
    """

    source: str
    """Those of the step, over all ranks."""
    tokens: TokenBatch
    positions: Tensor
    targets: Tensor
    rows: int
    """Of the step, over all ranks. A row may be several sequences."""

    def to(self, device: torch.device) -> Self:
        return replace(
            self,
            tokens=self.tokens.to(device),
            positions=self.positions.to(device, non_blocking=True),
            targets=self.targets.to(device, non_blocking=True),
        )

    def select(self, sequences: Tensor) -> Self:
        """The sequences of these numbers, each at most once, in that order."""
        tokens = self.tokens.select(sequences)
        device = self.positions.device
        offsets = self.tokens.offsets.to(device)
        place = torch.full((len(self.tokens),), -1)
        place[sequences] = torch.arange(len(sequences))
        # Which sequence each position is in, here and there.
        owner = torch.searchsorted(offsets, self.positions, right=True) - 1
        chosen = place.to(device)[owner]
        kept = (chosen >= 0).nonzero().squeeze(1)
        within = self.positions[kept] - offsets[owner[kept]]
        positions = tokens.offsets.to(device)[chosen[kept]] + within
        order = torch.argsort(positions)
        return replace(
            self, tokens=tokens, positions=positions[order], targets=self.targets[kept][order]
        )


@dataclass(frozen=True, slots=True)
class Masking:
    """Turns sequences into what the model sees and what it is to guess."""

    vocabulary: Vocabulary
    objective: MaskedLM

    def batch(self, rows: Iterable[tuple[list[Ids], int]], source: str, count: int) -> MaskedBatch:
        """A batch of rows, each with the key of its draw."""
        sequences: list[Ids] = []
        seen, places, targets = [], [], []
        start = 0
        for row, key in rows:
            ids = np.concatenate(row)
            maskable = ~np.isin(ids, self.vocabulary.special)
            masked, where = mask(ids, maskable, self.vocabulary, self.objective, key)
            sequences += row
            seen.append(masked)
            places.append(where + start)
            targets.append(ids[where])
            start += len(ids)
        offsets = np.cumsum([0, *map(len, sequences)])
        tokens = TokenBatch(
            _tensor(seen), torch.from_numpy(offsets), torch.zeros(len(sequences), dtype=torch.int64)
        )
        return MaskedBatch(source, tokens, _tensor(places), _tensor(targets), count)


class MaskedBatches(Dataset[MaskedBatch]):
    """Step -> this rank's part of its rows, masked.

    ``sampler`` gives draws, ``draws`` of which make a step.
    """

    def __init__(
        self,
        sampler: BatchSampler,
        rows: Sequence[Rows],
        masking: Masking,
        *,
        draws: int,
        seed: int,
    ) -> None:
        self._sampler, self._rows, self._masking = sampler, rows, masking
        self._draws, self._seed = draws, seed
        # Workers may be spawned, and know nothing of ranks.
        self._rank, self._world_size = distributed.rank(), distributed.world_size()

    def __len__(self) -> int:
        return len(self._sampler) // self._draws

    def __getitem__(self, step: int) -> MaskedBatch:
        draws = [self._sampler[step * self._draws + number] for number in range(self._draws)]
        whole = [(draw.source, int(row)) for draw in draws for row in draw.rows]
        mine = range(len(whole))[distributed.share_of(len(whole), self._rank, self._world_size)]
        names = dict.fromkeys(self._sampler.sources[draw.source].name for draw in draws)
        return self._masking.batch(
            (
                (self._rows[source][row], rng.fold_in(self._seed, "mask", step, place))
                for place in mine
                for source, row in [whole[place]]
            ),
            ", ".join(names),
            len(whole),
        )


def fixed_batch(name: str, rows: Rows, masking: Masking, count: int) -> MaskedBatch:
    """This rank's part of ``count`` rows, or of all, masked alike in every run.

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
