"""The sampler of sources that were cut into batches beforehand."""

import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from embedkit.clustering.build import write_order
from embedkit.data.batch_sampler import BatchSampler, Source, steps_in
from embedkit.data.batch_table import SourceBatches, SourceFacts


def cut_source(folder: Path, rows: int, size: int, *, short_batch: bool = False) -> Source:
    """Batches of the rows in an order of their own: 10 of 3 are 7 0 3, 6 9 2, 5 8 1, and 4."""
    folder.mkdir(exist_ok=True)
    write_order(folder, np.arange(7, 7 + 3 * rows, 3) % rows)
    cut = SourceBatches(folder, SourceFacts("only", "", rows, size), short_batch)
    return Source("only", rows, size, cut)


def sampler(source: Source, steps: int = 60) -> BatchSampler:
    return BatchSampler([source], [1.0], steps=steps, seed=3)


def read(plan: BatchSampler, steps: range) -> list[list[int]]:
    return [plan[step].rows.tolist() for step in steps]


def test_an_epoch_is_every_batch_of_the_table_in_an_order_of_its_own(tmp_path: Path) -> None:
    source = cut_source(tmp_path, 20, 4)
    assert source.contextual is not None
    whole = sorted(sorted(source.contextual[batch].tolist()) for batch in range(5))
    plan = sampler(source)
    epochs = [
        [sorted(rows) for rows in read(plan, range(start, start + 5))] for start in range(0, 60, 5)
    ]
    assert all(sorted(epoch) == whole for epoch in epochs)
    assert sum(one != other for one, other in pairwise(epochs)) >= 10


def test_the_rows_of_a_batch_come_in_another_order_each_time(tmp_path: Path) -> None:
    # Or a rank would hold the same part of it in every epoch.
    visits = read(sampler(cut_source(tmp_path, 8, 8), steps=20), range(20))
    assert all(sorted(rows) == list(range(8)) for rows in visits)
    assert len(set(map(tuple, visits))) == 20


def test_a_batch_is_the_same_whenever_and_wherever_it_is_asked_for(tmp_path: Path) -> None:
    source = cut_source(tmp_path, 22, 4)
    in_order = read(sampler(source), range(60))
    elsewhere = pickle.loads(pickle.dumps(sampler(source, steps=90)))
    for step in reversed(range(60)):
        assert elsewhere[step].rows.tolist() == in_order[step]


def test_rows_in_no_batch_change_places_with_others_and_every_row_has_its_turn(
    tmp_path: Path,
) -> None:
    source = cut_source(tmp_path, 14, 4)
    assert source.contextual is not None
    batches = [set(source.contextual[batch].tolist()) for batch in range(3)]
    plan = sampler(source, steps=3 * 700)
    missed = np.zeros(14)
    for start in range(0, len(plan), 3):
        epoch = read(plan, range(start, start + 3))
        read_rows = [row for rows in epoch for row in rows]
        assert len(set(read_rows)) == 12
        missed[sorted(set(range(14)) - set(read_rows))] += 1
        # Two rows are left out, so two at most are where they do not belong.
        assert sum(4 - max(len(own & set(rows)) for own in batches) for rows in epoch) <= 2
    # Two of fourteen rows an epoch; chi-square of 13 degrees: one seed in a thousand beyond 34.5.
    assert ((missed - 100) ** 2 / 100).sum() < 34.5


def test_a_source_smaller_than_a_batch_is_one_batch(tmp_path: Path) -> None:
    source = cut_source(tmp_path, 5, 8)
    assert (source.batches, source.smallest_batch) == (1, 5)
    plan = sampler(source, steps=3)
    assert [sorted(rows) for rows in read(plan, range(3))] == [list(range(5))] * 3


def test_a_short_batch_is_one_of_the_epoch(tmp_path: Path) -> None:
    source = cut_source(tmp_path, 10, 4, short_batch=True)
    assert (source.batches, source.smallest_batch) == (3, 2)
    plan = sampler(source, steps=30)
    for start in range(0, 30, 3):
        epoch = read(plan, range(start, start + 3))
        assert sorted(row for rows in epoch for row in rows) == list(range(10))
        assert sorted(map(len, epoch)) == [2, 4, 4]


@pytest.mark.parametrize(("short_batch", "batches"), [(False, 2), (True, 3)])
def test_passes_and_epochs_count_the_batches_of_the_table(
    tmp_path: Path, short_batch: bool, batches: int
) -> None:
    source = cut_source(tmp_path, 10, 4, short_batch=short_batch)
    assert sampler(source, steps=6).passes() == [6 / batches]
    assert steps_in(4, [source]) == 4 * batches
