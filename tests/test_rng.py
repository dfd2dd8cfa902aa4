import itertools

import numpy as np
import pytest

from embedkit import rng

ROWS_OF_A_LARGE_SOURCE = 235_000_000


def test_a_key_names_its_parts_in_their_order() -> None:
    draws: list[tuple[int | str, ...]] = [
        (),
        (0,),
        (0, 0),
        (1, 2),
        (2, 1),
        (12,),
        (1, "2"),
        (-1,),
        ("ab", "c"),
        ("a", "bc"),
        ("abc",),
        ("abc\0",),
        ("a much longer name", 1),
        ("a much longer name", 2),
    ]
    assert len({rng.fold_in(*parts) for parts in draws}) == len(draws)


def test_a_key_is_the_same_for_ever() -> None:
    # Runs are resumed by it: a change here breaks every checkpoint.
    assert rng.fold_in(7, "rows", "hpo_synonym", 3) == 15084043373135992927


def test_keys_of_neighbours_share_half_their_bits() -> None:
    keys = [rng.fold_in(7, "step", step) for step in range(2001)]
    differing = [(a ^ b).bit_count() for a, b in itertools.pairwise(keys)]
    assert abs(np.mean(differing) - 32) < 0.5


@pytest.mark.parametrize("size", [*range(1, 70), 255, 256, 257, 1000, 1024, 1025, 4097, 100_003])
def test_a_shuffle_is_a_bijection(size: int) -> None:
    shuffled = rng.permuted(np.arange(size), size, shuffle_key=size)
    assert np.array_equal(np.sort(shuffled), np.arange(size))


@pytest.mark.parametrize("size", [10, 5000, ROWS_OF_A_LARGE_SOURCE])
def test_a_row_goes_to_the_same_place_in_any_company(size: int) -> None:
    rows = np.arange(0, size, max(1, size // 100))
    together = rng.permuted(rows, size, shuffle_key=3)
    alone = [rng.permuted(rows[each : each + 1], size, shuffle_key=3) for each in range(len(rows))]
    assert np.array_equal(together, np.concatenate(alone))


def test_a_large_shuffle_has_no_collisions_and_stays_inside() -> None:
    generator = np.random.default_rng(0)
    scattered = generator.integers(ROWS_OF_A_LARGE_SOURCE, size=500_000)
    ends = np.arange(100_000)
    rows = np.unique(np.concatenate([scattered, ends, ROWS_OF_A_LARGE_SOURCE - 1 - ends]))
    shuffled = rng.permuted(rows, ROWS_OF_A_LARGE_SOURCE, shuffle_key=1)
    assert len(np.unique(shuffled)) == len(rows)
    assert shuffled.min() >= 0
    assert shuffled.max() < ROWS_OF_A_LARGE_SOURCE


@pytest.mark.parametrize("size", [50, 5000, ROWS_OF_A_LARGE_SOURCE])
def test_another_key_is_another_order(size: int) -> None:
    rows = np.arange(min(size, 1000))
    orders = [rng.permuted(rows, size, shuffle_key=number) for number in range(5)]
    for one, other in itertools.combinations(orders, 2):
        # Two random orders agree at some rows / size places.
        assert (one == other).mean() < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 10, 300])
def test_over_keys_a_row_goes_anywhere_alike(size: int) -> None:
    row = np.array([size // 2])
    places = np.concatenate([rng.permuted(row, size, shuffle_key=n) for n in range(10 * size)])
    counts = np.bincount(places, minlength=size)
    # Chi-square has mean size - 1 and variance 2 (size - 1).
    excess = ((counts - 10) ** 2 / 10).sum() - (size - 1)
    assert excess < 5 * np.sqrt(2 * (size - 1))


def test_the_orders_of_three_rows_come_up_alike() -> None:
    orders = [tuple(rng.permuted(np.arange(3), 3, shuffle_key=n)) for n in range(6000)]
    counts = [orders.count(order) for order in itertools.permutations(range(3))]
    assert min(counts) > 850
    assert max(counts) < 1150


def test_a_shuffle_leaves_no_trace_of_the_order() -> None:
    shuffled = rng.permuted(np.arange(20_000), 20_000, shuffle_key=5)
    assert abs(np.corrcoef(np.arange(20_000), shuffled)[0, 1]) < 0.04
    assert abs(np.corrcoef(shuffled[:-1], shuffled[1:])[0, 1]) < 0.04


def test_uniform_numbers_fill_the_unit_interval_evenly() -> None:
    numbers = rng.uniform(100_000, draw_key=5)
    assert numbers.dtype == np.float64
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = np.bincount((numbers * 100).astype(int), minlength=100)
    excess = ((counts - 1000) ** 2 / 1000).sum() - 99
    assert abs(excess) < 5 * np.sqrt(2 * 99)
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.02


def test_a_longer_draw_begins_with_a_shorter_one_and_another_key_is_another_draw() -> None:
    assert np.array_equal(rng.uniform(10, 3), rng.uniform(1000, 3)[:10])
    assert not np.isin(rng.uniform(1000, 3), rng.uniform(1000, 4)).any()


def test_a_uniform_number_is_the_same_for_ever() -> None:
    # Runs are resumed by it: a change here masks other tokens.
    assert rng.uniform(1, rng.fold_in(7, "mask", 3))[0] == 0.9888034670073211
