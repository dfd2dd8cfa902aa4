"""Several evaluations side by side, in the shape of the paper's Table 4."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from embedkit import rng
from embedkit.config import Section, read_toml, validated
from embedkit.errors import UserError
from embedkit.evaluation.summary import TYPES, Summary

RESAMPLES = 10_000
LEVEL = 0.95
SEED = 0
"""Of the bootstrap, as the two above."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Of two means over the same tasks, and the interval that resampling the tasks gives."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Row:
    """A model's means times 100."""

    name: str
    types: Mapping[str, float]
    average: float
    """Over tasks, as in the paper."""
    difference: Difference | None = None
    """To the first row; the first row and published ones have none."""
    published: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    rows: tuple[Row, ...]
    types: tuple[str, ...]
    """The columns: the seven of MTEB(eng, v1), and others that were measured."""
    tasks: int
    """Those that every run has a score of."""
    left_out: tuple[str, ...] = ()
    """Those that only some runs have a score of."""
    notes: tuple[str, ...] = ()

    def best(self, column: str) -> float | None:
        """The highest mean of the runs; published rows, over other tasks perhaps, do not count."""
        own = [value_of(row, column) for row in self.rows if not row.published]
        return max((each for each in own if each is not None), default=None)


class _Published(Section):
    name: str
    average: float
    types: dict[str, float]


class _Table(Section):
    tasks: int
    row: list[_Published]


def value_of(row: Row, column: str) -> float | None:
    """The mean of a type, or the average."""
    return row.average if column == "average" else row.types.get(column)


def read_run(folder: Path) -> tuple[str, Summary]:
    """The name and the summary of a run of ``finetune``, or of a folder of ``eval-mteb``.

    Raises:
        UserError: the folder holds no evaluation.
    """
    for name, path in (
        (_own_name(folder), folder / "summary.json"),
        (folder.resolve().name, folder / "eval" / "after" / "summary.json"),
    ):
        if path.is_file():
            try:
                return name, Summary.read(path)
            except (ValueError, KeyError, TypeError, AttributeError):
                raise UserError(f"{path}: is no summary of an evaluation") from None
    raise UserError(
        f"{folder}: holds neither summary.json nor eval/after/summary.json: evaluate it with "
        "embedkit eval-mteb, or give its recipe an [evaluation]"
    )


def compare(runs: Sequence[str | Path], *, paper: bool = False) -> Comparison:
    """Set evaluations side by side, in the shape of the paper's Table 4.

    Args:
        runs: folders of ``finetune``, or outputs of ``evaluate``. Differences are to the first.
        paper: add the published rows of Table 4.

    Raises:
        UserError: a folder holds no evaluation, no task has a score in all of them, or two runs
            have one name.
    """
    return compare_summaries([read_run(Path(run)) for run in runs], paper=paper)


def compare_summaries(runs: Sequence[tuple[str, Summary]], *, paper: bool = False) -> Comparison:
    """Set runs side by side over the tasks that all of them have a score of.

    Raises:
        UserError: there is no such task, or two runs have one name.
    """
    names = [name for name, _ in runs]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"two runs are called {', '.join(repeated)}: rename one's folder")
    scored = [set(summary.scores) for _, summary in runs]
    shared = [name for name in runs[0][1].scores if all(name in each for each in scored)]
    if not shared:
        raise UserError(f"{', '.join(names)}: no task has a score in all of them")
    first = runs[0][1]
    rows = [
        _row(name, summary, shared, None if number == 0 else first)
        for number, (name, summary) in enumerate(runs)
    ]
    published, notes = _published(len(shared)) if paper else ([], [])
    measured = {first.scores[name].type for name in shared}
    return Comparison(
        rows=(*rows, *published),
        types=(*TYPES, *sorted(measured - set(TYPES))),
        tasks=len(shared),
        left_out=tuple(sorted(set().union(*scored) - set(shared))),
        notes=tuple(_mismatches(runs, shared) + notes),
    )


def interval(differences: Sequence[float], seed: int = SEED) -> Difference:
    """The mean of paired differences, with the percentiles of its bootstrap over tasks."""
    values = np.asarray(differences, dtype=np.float64)
    draws = np.random.default_rng(rng.fold_in(seed, "compare"))
    chosen = draws.integers(0, len(values), size=(RESAMPLES, len(values)))
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(values[chosen].mean(axis=1), [tail, 1 - tail])
    return Difference(float(values.mean()), float(low), float(high))


def _row(name: str, summary: Summary, tasks: Sequence[str], first: Summary | None) -> Row:
    scores = {task: 100 * summary.scores[task].score for task in tasks}
    by_type: dict[str, list[float]] = {}
    for task, score in scores.items():
        by_type.setdefault(summary.scores[task].type, []).append(score)
    difference = None
    if first is not None:
        difference = interval([scores[task] - 100 * first.scores[task].score for task in tasks])
    types = {type_: fmean(each) for type_, each in by_type.items()}
    return Row(name, types, fmean(scores.values()), difference)


def _published(tasks: int) -> tuple[list[Row], list[str]]:
    path = Path(__file__).with_name("paper_table4.toml")
    table = validated(_Table, read_toml(path), str(path))
    rows = [Row(each.name, each.types, each.average, published=True) for each in table.row]
    note = "Rows of the paper (Table 4) are over the 56 tasks of MTEB(eng, v1)"
    return rows, [note if tasks == table.tasks else f"{note}, the others over {tasks} tasks"]


def _mismatches(runs: Sequence[tuple[str, Summary]], tasks: Sequence[str]) -> list[str]:
    """What makes scores of one task incomparable: other data, or another metric."""
    found = []
    for task in tasks:
        for what in ("revision", "metric", "splits"):
            if len({getattr(summary.scores[task], what) for _, summary in runs}) > 1:
                found.append(f"{task}: the runs differ in its {what}")
    return found


def _own_name(folder: Path) -> str:
    """What a folder with a summary is called: that of a run within it has the run's name too."""
    path = folder.resolve()
    within = path.parent.name == "eval"
    return f"{path.parent.parent.name} {path.name}" if within else path.name
