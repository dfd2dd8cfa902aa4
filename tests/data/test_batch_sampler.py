import tracemalloc
from itertools import pairwise

import numpy as np
import pytest

from embedkit.data import batch_sampler as module
from embedkit.data.batch_sampler import BatchSampler, Source, alpha_weights, steps_in
from embedkit.errors import DataError

SOURCES = [Source("small", 13, 4), Source("middle", 100, 10), Source("large", 1000, 7)]


def sampler(steps: int = 400, *, batches_per_step: int = 1, seed: int = 7) -> BatchSampler:
    weights = alpha_weights(SOURCES, 0.5)
    return BatchSampler(SOURCES, weights, steps=steps, batches_per_step=batches_per_step, seed=seed)


def one_source(rows: int, batch_size: int, steps: int) -> BatchSampler:
    return BatchSampler([Source("only", rows, batch_size)], [1.0], steps=steps, seed=3)


def read(plan: BatchSampler) -> list[tuple[int, list[int]]]:
    return [(plan[number].source, plan[number].rows.tolist()) for number in range(len(plan))]


def test_a_batch_is_the_same_whenever_and_wherever_it_is_asked_for() -> None:
    in_order = read(sampler())
    fresh = sampler()
    for number in reversed(range(400)):
        draw = fresh[number]
        assert (draw.source, draw.rows.tolist()) == in_order[number]


def test_more_steps_change_no_earlier_batch() -> None:
    assert read(sampler(steps=400))[:57] == read(sampler(steps=57))


def test_another_seed_draws_other_sources_and_other_rows() -> None:
    ours, theirs = read(sampler(seed=7)), read(sampler(seed=8))
    assert [source for source, _ in ours] != [source for source, _ in theirs]
    same = [a[1] == b[1] for a, b in zip(ours, theirs, strict=True) if a[0] == b[0]]
    assert same
    assert not any(same)


def test_a_batch_has_the_size_of_its_source_and_no_row_twice() -> None:
    for source, rows in read(sampler()):
        assert len(set(rows)) == len(rows) == SOURCES[source].batch_size
        assert set(rows) <= set(range(SOURCES[source].rows))


def test_an_epoch_reads_every_row_once_but_for_the_end_that_fills_no_batch() -> None:
    by_source: dict[int, list[list[int]]] = {0: [], 1: [], 2: []}
    for number, rows in read(sampler()):
        by_source[number].append(rows)
    for number, source in enumerate(SOURCES):
        per_epoch = source.rows // source.batch_size
        visits = by_source[number]
        assert len(visits) > 1.5 * per_epoch
        for start in range(0, len(visits), per_epoch):
            epoch = [row for rows in visits[start : start + per_epoch] for row in rows]
            assert len(set(epoch)) == len(epoch)


def test_every_epoch_has_an_order_of_its_own_and_leaves_out_other_rows() -> None:
    plan = one_source(rows=13, batch_size=4, steps=60)
    epochs = [
        [row for number in range(start, start + 3) for row in plan[number].rows]
        for start in range(0, 60, 3)
    ]
    assert all(one != other for one, other in pairwise(epochs))
    left_out = {(set(range(13)) - set(epoch)).pop() for epoch in epochs}
    assert len(left_out) > 5


def test_sources_of_one_size_are_read_in_orders_of_their_own() -> None:
    sources = [Source("one", 50, 50), Source("other", 50, 50)]
    plan = BatchSampler(sources, [1.0, 1.0], steps=20, seed=0)
    first = {source: rows for source, rows in reversed(read(plan))}
    assert first[0] != first[1]


@pytest.mark.parametrize("block", [1, 8, 100])
def test_turns_do_not_depend_on_where_counts_are_kept(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = read(sampler())
    monkeypatch.setattr(module, "_BLOCK", block)
    assert read(sampler()) == expected


@pytest.mark.parametrize("start", [4092, 4095, 4098, 8190, 8193])
def test_no_turn_is_lost_or_repeated_where_a_block_begins(start: int) -> None:
    # Three batches make an epoch, and 4092 = 3 * 1364.
    plan = one_source(rows=12, batch_size=4, steps=9000)
    epoch = [int(row) for number in range(start, start + 3) for row in plan[number].rows]
    assert sorted(epoch) == list(range(12))


def test_sources_come_up_as_their_size_to_the_power_of_alpha() -> None:
    sources = [Source(str(rows), rows, 10) for rows in (100, 10_000, 1_000_000)]
    assert alpha_weights(sources, 0.5) == [10.0, 100.0, 1000.0]
    assert alpha_weights(sources, 0) == [1.0, 1.0, 1.0]
    plan = BatchSampler(sources, alpha_weights(sources, 0.5), steps=111_000, seed=1)
    check_steps(plan, [1000, 10_000, 100_000])


def test_explicit_weights_need_no_sum() -> None:
    sources = [Source("a", 100, 10), Source("b", 100, 10), Source("c", 100, 10)]
    check_steps(
        BatchSampler(sources, [5.0, 0.5, 2.5], steps=80_000, seed=2), [50_000, 5000, 25_000]
    )


def check_steps(plan: BatchSampler, expected: list[int]) -> None:
    batches = [source.rows // source.batch_size for source in plan.sources]
    steps = np.array(plan.passes()) * batches
    # Chi-square with two degrees of freedom: one seed in a thousand goes beyond 13.8.
    assert ((steps - expected) ** 2 / expected).sum() < 13.8


def test_passes_count_what_is_read() -> None:
    plan = sampler(batches_per_step=3)
    batches = np.bincount([source for source, _ in read(plan)])
    expected = [batches[0] / 3, batches[1] / 10, batches[2] / 142]
    assert plan.passes() == pytest.approx(expected)


def test_the_batches_of_a_step_read_one_source_and_no_row_twice() -> None:
    plan = sampler(batches_per_step=3)
    assert len(plan) == 1200
    for step in range(400):
        assert len({plan[3 * step + micro].source for micro in range(3)}) == 1
    only = BatchSampler([Source("only", 12, 4)], [1.0], steps=2, batches_per_step=3, seed=0)
    rows = [int(row) for number in range(3) for row in only[number].rows]
    assert sorted(rows) == list(range(12))


def test_more_batches_a_step_draw_the_same_sources() -> None:
    plain, accumulated = sampler(), sampler(batches_per_step=2)
    assert [plain[n].source for n in range(400)] == [accumulated[2 * n].source for n in range(400)]


def test_millions_of_steps_over_hundreds_of_millions_of_rows_cost_a_byte_a_step() -> None:
    tracemalloc.start()
    sources = [Source("large", 235_000_000, 2048), Source("small", 5000, 2048)]
    plan = BatchSampler(sources, alpha_weights(sources, 0.5), steps=1_000_000, seed=0)
    plan[999_999]
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1.5e6
    assert peak < 30e6


def test_many_sources_are_told_apart() -> None:
    sources = [Source(str(number), 1, 1) for number in range(300)]
    plan = BatchSampler(sources, [1.0] * 299 + [1e9], steps=5, seed=0)
    assert [plan[number].source for number in range(5)] == [299] * 5


@pytest.mark.parametrize("batch", [-1, 400])
def test_a_batch_outside_the_schedule_does_not_exist(batch: int) -> None:
    with pytest.raises(IndexError, match="of a sampler of 400"):
        sampler()[batch]


def test_a_source_smaller_than_its_batch_is_refused() -> None:
    sources = [Source("fits", 8, 8), Source("mine", 5, 8)]
    with pytest.raises(DataError, match="source mine has 5 rows, fewer than one batch of 8: set"):
        BatchSampler(sources, [1.0, 1.0], steps=10, seed=0)
    with pytest.raises(DataError, match="source none has no rows: leave it out"):
        BatchSampler([Source("none", 0, 8)], [1.0], steps=10, seed=0)


@pytest.mark.parametrize(
    ("epochs", "batches_per_step", "steps"), [(1, 1, 155), (2, 1, 310), (1, 10, 16), (0.001, 1, 1)]
)
def test_epochs_are_so_many_passes_over_the_mixture(
    epochs: float, batches_per_step: int, steps: int
) -> None:
    # 3 + 10 + 142 batches are in the mixture.
    assert steps_in(epochs, SOURCES, batches_per_step) == steps
