"""Samples the records that each step reads, as a pure function of the step number."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit import rng
from embedkit.data.batch_table import SourceBatches
from embedkit.errors import DataError

_BLOCK = 4096
"""Steps between two running counts, so that a turn is found without counting from the start."""


@dataclass(frozen=True, slots=True)
class Source:
    """The size of a source, and how its rows are divided into batches."""

    name: str
    rows: int
    batch_size: int
    contextual: SourceBatches | None = None
    """Contextual batches; ``None`` fills batches from a shuffle of all rows."""

    @property
    def batches(self) -> int:
        """Number of batches in an epoch."""
        return self.rows // self.batch_size if self.contextual is None else len(self.contextual)

    @property
    def smallest_batch(self) -> int:
        """Number of rows in the smallest batch; the last contextual batch may be a short one."""
        table = self.contextual
        return self.batch_size if table is None else len(table[len(table) - 1])


@dataclass(frozen=True, slots=True, eq=False)
class BatchRows:
    """The records of one batch: rows of a single source, in the order of the whole batch."""

    source: int
    rows: NDArray[np.int64]


class BatchSampler:
    """Fills every step from one source, so that in-batch negatives share a task.

    Sources come up by weight. Within a source, rows are read epoch after epoch, in an order
    shuffled anew each time; the end of an epoch that cannot fill a batch is left out. Where a
    source was cut into batches, an epoch is all of those, in an order of its own, and as many rows
    as are in none of them change places with rows that are: which ones, every epoch draws anew
    from all rows. Only the source of each step is stored; a longer schedule begins with the steps
    of a shorter one.

    Args:
        sources: sources to read.
        weights: relative frequency of each source.
        steps: number of steps.
        batches_per_step: batch ``n`` belongs to step ``n // batches_per_step``.
        seed: random seed for drawing sources and for every shuffle.

    Raises:
        DataError: a source is smaller than its batch.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        weights: Sequence[float],
        *,
        steps: int,
        batches_per_step: int = 1,
        seed: int,
    ) -> None:
        for source in sources:
            if source.rows == 0:
                raise DataError(f"source {source.name} has no rows: leave it out")
            if source.batches == 0:
                raise DataError(
                    f"source {source.name} has {source.rows} rows, fewer than one batch of "
                    f"{source.batch_size}: set batch_size = {source.rows} or less in its manifest, "
                    "or leave it out"
                )
        self.sources = tuple(sources)
        self._seed, self._per_step = seed, batches_per_step
        kind = np.uint8 if len(sources) <= 256 else np.uint16
        # One uniform number a step, in order: a longer run only adds to the end.
        uniform = np.random.default_rng(rng.fold_in(seed, "source")).random(steps)
        edges = np.cumsum(np.array(weights) / np.sum(weights))
        edges[-1] = 1.0
        self._draws = np.searchsorted(edges, uniform, side="right").astype(kind)
        self._counts = _running_counts(self._draws, len(sources))

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self._draws) * self._per_step

    def __getitem__(self, batch: int) -> BatchRows:
        """Return the rows of a batch; raises ``IndexError`` outside the schedule."""
        if not 0 <= batch < len(self):
            raise IndexError(f"batch {batch} of a sampler of {len(self)}")
        step, micro = divmod(batch, self._per_step)
        index = int(self._draws[step])
        source = self.sources[index]
        turn = self._turn(step, index) * self._per_step + micro
        epoch, place = divmod(turn, source.batches)
        order = rng.fold_in(self._seed, "rows", source.name, epoch)
        if source.contextual is not None:
            return BatchRows(index, _contextual_rows(source.contextual, source, place, order))
        places = np.arange(place * source.batch_size, (place + 1) * source.batch_size)
        return BatchRows(index, rng.permuted(places, source.rows, order))

    def passes(self) -> list[float]:
        """Return how often each source is read from beginning to end in the whole schedule."""
        return [
            count * self._per_step / source.batches
            for count, source in zip(self.steps_of_sources(), self.sources, strict=True)
        ]

    def steps_of_sources(self) -> list[int]:
        """Return how many of the steps read each source."""
        return [int(n) for n in np.bincount(self._draws, minlength=len(self.sources))]

    def _turn(self, step: int, source: int) -> int:
        """Return how many steps ``source`` had before ``step``."""
        block = step // _BLOCK
        since = self._draws[block * _BLOCK : step] == source
        return int(self._counts[block, source]) + int(since.sum())


def alpha_weights(sources: Sequence[Source], alpha: float) -> list[float]:
    """Return sampling weights proportional to rows ** alpha (paper, appendix D.2)."""
    return [float(source.rows) ** alpha for source in sources]


def steps_in(epochs: float, sources: Sequence[Source], batches_per_step: int = 1) -> int:
    """Return the steps in which the mixture as a whole is read ``epochs`` times."""
    batches = sum(source.batches for source in sources)
    return max(1, round(epochs * batches / batches_per_step))


def _contextual_rows(
    table: SourceBatches, source: Source, place: int, order: int
) -> NDArray[np.int64]:
    """Return the rows of the batch that is number ``place`` in the epoch that ``order`` names."""
    batches = rng.fold_in(order, "batches")
    number = int(rng.permuted(np.array([place]), len(table), batches)[0])
    rows, rest = table[number], table.left_out
    if len(rest):
        # Rows by their places in the table, where those in no batch come last.
        kept = source.rows - len(rest)
        drawn = rng.permuted(np.arange(len(rest)), source.rows, rng.fold_in(order, "left out"))
        leaving = drawn[drawn < kept] - number * source.batch_size
        entering = rest[np.setdiff1d(np.arange(kept, source.rows), drawn) - kept]
        here = (leaving >= 0) & (leaving < len(rows))
        rows[leaving[here]] = entering[here]
    # Ranks take slices, and are to hold other rows together each time.
    return rows[rng.permuted(np.arange(len(rows)), len(rows), rng.fold_in(order, "ranks", number))]


def _running_counts(draws: NDArray[Any], sources: int) -> NDArray[np.int64]:
    """Return how often each source was drawn before every block, ``(blocks, sources)``."""
    blocks = [
        np.bincount(draws[start : start + _BLOCK], minlength=sources)
        for start in range(0, max(1, len(draws)), _BLOCK)
    ]
    return np.vstack([np.zeros((1, sources), dtype=np.int64), np.cumsum(blocks, axis=0)])
