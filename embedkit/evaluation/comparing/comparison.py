"""Compares evaluations, with each other and with published results, like the paper's Table 4."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import numpy as np

from embedkit.config import from_arguments, read_toml
from embedkit.errors import UserError, counted, repeated
from embedkit.evaluation.comparing.by_task import Contest, contest
from embedkit.evaluation.comparing.runs import Group, read_group, read_run
from embedkit.evaluation.comparing.statistics import Difference, of_groups
from embedkit.evaluation.settings import ComparisonOptions, ComparisonSettings
from embedkit.evaluation.summary import TYPES, Summary, TaskScore


@dataclass(frozen=True, slots=True)
class Row:
    """Means times 100 of a run, of a group of runs, or of a published model."""

    name: str
    types: Mapping[str, float]
    average: float
    """Mean over tasks, as in the paper."""
    difference: Difference | None = None
    """Difference to the first row; ``None`` for the first row and published ones."""
    published: bool = False
    spread: float | None = None
    """Standard deviation of the average over the runs of a group."""

    @property
    def means(self) -> Mapping[str, float]:
        """The mean of each type, and that of all tasks as ``average``."""
        return {**self.types, "average": self.average}


@dataclass(frozen=True, slots=True)
class Comparison:
    rows: tuple[Row, ...]
    types: tuple[str, ...]
    """Columns: the seven types of MTEB(eng, v1), and others that were measured."""
    tasks: int
    """Number of tasks that have a score in every run."""
    left_out: tuple[str, ...] = ()
    """Tasks that have a score in some runs only."""
    notes: tuple[str, ...] = ()
    contests: tuple[Contest, ...] = ()
    """Each row against the first one, task by task, if that was asked for."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Keys of ``Row.means`` in the order of a table's columns."""
        return (*self.types, "average")

    def best(self, column: str) -> float | None:
        """Return the highest mean of the runs, without published rows, whose tasks may differ."""
        runs = [row.means for row in self.rows if not row.published]
        return max((means[column] for means in runs if column in means), default=None)


def compare(runs: Sequence[str | Path] = (), **options: Unpack[ComparisonOptions]) -> Comparison:
    """Compare evaluations over the tasks that all of them have scored.

    Args:
        runs: folders of ``finetune``, or outputs of ``evaluate``. The first row, to which
            differences are, is the first of them, or else the first group.
        options: the fields of ``embedkit.ComparisonSettings``, with the defaults they have there.

    Raises:
        UserError: a folder holds no evaluation, a pattern matches fewer than two folders, no task
            has a score in all of them, or two rows have one name.
    """
    settings = from_arguments(ComparisonSettings, options)
    single = [read_run(Path(run)) for run in runs]
    groups = [Group(run.name, (run,)) for run in single] + list(map(read_group, settings.group))
    return compare_groups(groups, paper=settings.paper, tasks=settings.tasks)


def compare_groups(
    groups: Sequence[Group], *, paper: bool = False, tasks: bool = False
) -> Comparison:
    """Compare groups of runs, as ``compare`` does folders."""
    names = [group.name for group in groups]
    if not names:
        raise UserError("no run to compare: name folders of runs, or groups of them")
    if twice := repeated(names):
        raise UserError(f"two runs are called {', '.join(twice)}: rename one's folder")
    runs = [run for group in groups for run in group.runs]
    scored = [set(run.summary.scores) for run in runs]
    shared = [task for task in runs[0].summary.scores if all(task in own for own in scored)]
    if not shared:
        raise UserError(f"{', '.join(names)}: no task has a score in all of them")
    rows = [_row(group, shared, groups[0]) for group in groups]
    published, notes = _published(len(shared)) if paper else ([], [])
    measured = {runs[0].summary.scores[task].type for task in shared}
    contests = [contest(groups[0], group, shared) for group in groups[1:]] if tasks else []
    return Comparison(
        rows=(*rows, *published),
        types=(*TYPES, *sorted(measured - set(TYPES))),
        tasks=len(shared),
        left_out=tuple(sorted(set().union(*scored) - set(shared))),
        notes=(*mismatches([run.summary for run in runs], shared), *notes),
        contests=tuple(contests),
    )


def _row(group: Group, tasks: Sequence[str], first: Group) -> Row:
    scores = group.scores(tasks)
    by_type: dict[str, list[float]] = {}
    for task, score in zip(tasks, scores.mean(axis=0), strict=True):
        by_type.setdefault(first.runs[0].summary.scores[task].type, []).append(float(score))
    averages = scores.mean(axis=1)
    return Row(
        group.title,
        {type_: float(np.mean(values)) for type_, values in by_type.items()},
        float(averages.mean()),
        None if group is first else of_groups(first.scores(tasks), scores),
        spread=float(averages.std(ddof=1)) if len(averages) > 1 else None,
    )


def mismatches(
    summaries: Sequence[Summary], tasks: Sequence[str], which: str = "The runs"
) -> list[str]:
    """Return a line for each circumstance in which evaluations, called ``which``, differ."""
    lines = []
    for what, of_score in _CIRCUMSTANCES.items():
        values = {task: {of_score(each.scores[task]) for each in summaries} for task in tasks}
        differing = [task for task in tasks if len(values[task]) > 1]
        if differing:
            where = "all tasks" if differing == list(tasks) else ", ".join(differing)
            lines.append(f"{which} differ in the {what} of {where}")
            if what in _PRINTED:
                lines[-1] += f" ({', '.join(sorted(set().union(*values.values())))})"
    return lines


def remarks_on(before: Summary, after: Summary) -> list[str]:
    """Return a line for each circumstance that changed between the evaluations of one run."""
    shared = [task for task in before.scores if task in after.scores]
    return mismatches([before, after], shared, "The scores before and after")


def _drawn(score: TaskScore) -> str:
    """Return how the contexts of a task were drawn; their vectors are always the model's own."""
    contexts = sorted(score.contexts.items())
    return str([(name, {**facts, "hash": ""}) for name, facts in contexts])


_CIRCUMSTANCES: Mapping[str, Callable[[TaskScore], str]] = {
    "prompts": lambda score: str(sorted(score.prompts.items())),
    "precision": lambda score: score.dtype,
    "mteb version": lambda score: score.mteb_version,
    "data revision": lambda score: score.revision,
    "splits": lambda score: ", ".join(score.splits),
    "length limit": lambda score: str(score.max_tokens),
    "contexts": _drawn,
    "metric": lambda score: score.metric,
}
_PRINTED = ("precision", "mteb version", "length limit", "metric", "splits")
"""Circumstances whose values fit in the line."""


def _published(tasks: int) -> tuple[list[Row], list[str]]:
    table = read_toml(Path(__file__).with_name("paper_table4.toml"))
    rows = [Row(**row, published=True) for row in table["row"]]
    note = "Rows of the paper (Table 4) are over the 56 tasks of MTEB(eng, v1)"
    return rows, [
        note if tasks == table["tasks"] else f"{note}, the others over {counted(tasks, 'task')}"
    ]
