from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from embedkit.evaluation.comparing import statistics
from embedkit.evaluation.comparing.statistics import Difference, of_groups, paired

Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]
NORMAL: Draw = lambda draws, shape: draws.normal(size=shape)  # noqa: E731
SKEWED: Draw = lambda draws, shape: draws.exponential(size=shape) - 1  # noqa: E731
"""Exponential: some tasks gain much and most lose a little."""


def covers(found: Difference) -> bool:
    assert found.low is not None
    assert found.high is not None
    return found.low <= 0 <= found.high


@pytest.mark.parametrize(
    ("draw", "tasks", "least", "most"),
    [
        (NORMAL, 5, 0.94, 0.96),
        (NORMAL, 13, 0.94, 0.96),
        (NORMAL, 56, 0.94, 0.96),
        (SKEWED, 5, 0.86, 0.90),
        (SKEWED, 13, 0.89, 0.93),
        (SKEWED, 56, 0.92, 0.955),
    ],
)
def test_the_interval_covers_what_it_says(
    draw: Draw, tasks: int, least: float, most: float
) -> None:
    samples = draw(np.random.default_rng(0), (3000, tasks))
    share = np.mean([covers(paired(sample)) for sample in samples])
    # The mean of 3000 such outcomes has a standard error of 0.4 to 0.6 %.
    assert least <= share <= most


@pytest.mark.parametrize("draw", [NORMAL, SKEWED])
@pytest.mark.parametrize("seeds", [2, 3])
@pytest.mark.parametrize(("of_task", "of_run"), [(2.0, 0.3), (0.3, 0.6)])
def test_the_interval_of_groups_covers_what_it_says(
    draw: Draw, seeds: int, of_task: float, of_run: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 11 tasks of very different levels, as few resamples as can show 95 % and be quick.
    monkeypatch.setattr(statistics, "RESAMPLES", 800)
    draws = np.random.default_rng(1)
    outcomes = []
    for _ in range(250):
        level = 10 * draws.normal(size=11)
        change = of_task * draw(draws, (11,))
        first, second = (
            own + of_run * draws.normal(size=(seeds, 1)) + 0.5 * draws.normal(size=(seeds, 11))
            for own in (level, level + change)
        )
        outcomes.append(covers(of_groups(first, second)))
    # Percentiles of the same resamples cover 0.75 to 0.90.
    assert np.mean(outcomes) >= 0.91


def test_one_stratum_is_the_paired_t_test() -> None:
    values = np.random.default_rng(3).normal(1.0, 2.0, size=40)
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert paired(values) == pytest.approx((values.mean(), low, high))


def test_two_strata_are_welch_s_test() -> None:
    draws = np.random.default_rng(4)
    first, second = draws.normal(1.0, 2.0, size=9), draws.normal(3.0, 0.5, size=30)
    low, high = stats.ttest_ind(first, -second, equal_var=False).confidence_interval(0.95)
    # Of the mean of two strata, half of the difference of one to the negative of the other.
    mean = (first.mean() + second.mean()) / 2
    assert paired(first, second) == pytest.approx((mean, low / 2, high / 2))


def test_too_few_values_have_no_interval() -> None:
    assert str(paired([1.0, 2.0, 3.0, 4.0])) == "+2.50 [n < 5]"
    assert paired([1.0, 2.0, 3.0, 4.0, 5.0]).low is not None
    assert paired([1.0, 2.0, 3.0, 4.0, 5.0], [1.0]).low is None
    assert of_groups(np.zeros((2, 4)), np.ones((3, 4))) == (1, None, None)


def test_a_difference_that_is_the_same_in_every_task_has_no_width() -> None:
    assert paired([2.0] * 6) == (2, 2, 2)
    assert of_groups(np.zeros((2, 6)), np.ones((3, 6))) == (1, 1, 1)


def test_single_runs_are_paired_by_task() -> None:
    draws = np.random.default_rng(5)
    first, second = draws.normal(size=(1, 9)), draws.normal(size=(1, 9))
    assert of_groups(first, second) == paired(second[0] - first[0])


def test_the_spread_of_runs_widens_the_interval() -> None:
    draws = np.random.default_rng(6)
    level, gains = 10 * draws.normal(size=12), draws.normal(1, 0.2, size=12)
    alike = np.array([[0.01], [0.0], [-0.01]])
    narrow = of_groups(level + alike, level + gains + alike)
    wide = of_groups(level + alike, level + gains + 100 * alike)
    assert narrow.mean == pytest.approx(wide.mean)
    assert narrow.low is not None
    assert wide.low is not None
    assert narrow.low > 0 > wide.low
    assert of_groups(level + alike, level + gains + alike) == narrow
    assert of_groups(level + alike, level + gains + alike, seed=1) != narrow
