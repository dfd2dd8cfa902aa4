"""Differences of means with their 95 % intervals. docs/evaluation.md has the simulated coverage."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from embedkit import rng

LEVEL = 0.95
FEWEST = 5
"""A difference over fewer tasks or queries has no interval, which would say too little."""
RESAMPLES = 10_000
SEED = 0
"""Random seed of the bootstrap."""

_TAIL = (1 - LEVEL) / 2


class Difference(NamedTuple):
    """Difference of two means, with the bounds of its interval if there are enough values."""

    mean: float
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> str:
        """The bounds in brackets, or that there are too few values."""
        if self.low is None or self.high is None:
            return f"[n < {FEWEST}]"
        return f"[{self.low:+.2f}, {self.high:+.2f}]"

    def __str__(self) -> str:
        return f"{self.mean:+.2f} {self.interval}"


def paired(*strata: ArrayLike) -> Difference:
    """Return the mean of paired differences, with the interval of Student's t.

    Several strata, such as the parts of a task, count alike whatever their sizes; their degrees of
    freedom are those of Welch and Satterthwaite.
    """
    values = [np.asarray(stratum, dtype=np.float64) for stratum in strata]
    mean = float(np.mean([stratum.mean() for stratum in values]))
    sizes = np.array([len(stratum) for stratum in values])
    if sizes.sum() < FEWEST or sizes.min() < 2:
        return Difference(mean)
    variances = np.array([stratum.var(ddof=1) for stratum in values]) / sizes / len(values) ** 2
    error = float(np.sqrt(variances.sum()))
    if error == 0:
        return Difference(mean, mean, mean)
    freedom = variances.sum() ** 2 / (variances**2 / (sizes - 1)).sum()
    half = float(stats.t.ppf(1 - _TAIL, freedom)) * error
    return Difference(mean, mean - half, mean + half)


def of_groups(first: ArrayLike, second: ArrayLike, *, seed: int = SEED) -> Difference:
    """Return the difference of two groups of runs over the same tasks.

    The interval is a bootstrap of two levels, which draws runs and tasks. It is studentized, since
    the percentiles of means of a few runs lie too close together (Efron and Tibshirani, An
    Introduction to the Bootstrap, 1993, chapter 12). The variance between runs that a group of one
    run would have is unknown and left out. Two single runs get the interval of ``paired``.

    Shapes: scores ``(runs, tasks)``; the numbers of runs may differ.
    """
    groups = [np.asarray(scores, dtype=np.float64) for scores in (first, second)]
    if all(len(scores) == 1 for scores in groups):
        return paired(groups[1][0] - groups[0][0])
    tasks = groups[0].shape[1]
    if tasks < FEWEST:
        return Difference(float(groups[1].mean() - groups[0].mean()))
    mean, error = _mean_and_error(*groups)
    if error == 0:
        return Difference(float(mean), float(mean), float(mean))
    draws = np.random.default_rng(rng.fold_in(seed, "compare"))
    drawn_tasks = draws.integers(0, tasks, (RESAMPLES, 1, tasks))
    resampled = []
    for scores in groups:
        drawn_runs = draws.integers(0, len(scores), (RESAMPLES, len(scores), 1))
        resampled.append(scores[drawn_runs, drawn_tasks])
    means, errors = _mean_and_error(*resampled)
    with np.errstate(divide="ignore", invalid="ignore"):
        deviations = np.where(means == mean, 0, (means - mean) / errors)
    # The method interpolates nothing, since a resample without variance deviates infinitely.
    low, high = np.quantile(deviations, [_TAIL, 1 - _TAIL], method="inverted_cdf")
    return Difference(float(mean), float(mean - high * error), float(mean - low * error))


def _mean_and_error(
    first: NDArray[np.float64], second: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the difference over runs and tasks, and its standard error.

    Shapes: scores ``(..., runs, tasks)``; results ``(...)``.
    """
    differences = second.mean(axis=-2) - first.mean(axis=-2)
    variance = differences.var(axis=-1, ddof=1) / differences.shape[-1]
    for scores in (first, second):
        if (runs := scores.shape[-2]) > 1:
            variance = variance + scores.mean(axis=-1).var(axis=-1, ddof=1) / runs
    return differences.mean(axis=-1), np.sqrt(variance)
