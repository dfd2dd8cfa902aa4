"""What an evaluation found: scores, both means, and what is missing from them."""

import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from embedkit.storage.atomic import write_json

TYPES = (
    "Classification",
    "Clustering",
    "PairClassification",
    "Reranking",
    "Retrieval",
    "STS",
    "Summarization",
)
"""The types of MTEB(eng, v1), in the order in which they are reported."""


@dataclass(frozen=True, slots=True)
class TaskScore:
    """A task's main score, between -1 and 1, and what it was measured with."""

    name: str
    type: str
    metric: str
    score: float
    prompts: Mapping[str, str]
    """What stood before the texts, by side: query and document, or text."""
    seconds: float | None
    """What the run that measured it took; a score from the cache keeps the first run's."""
    revision: str
    """The revision of the data: a content hash for task folders."""
    splits: tuple[str, ...]
    parts: Mapping[str, float] = field(default_factory=dict)
    """The scores that this one is the mean of."""
    contexts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By task or part, what a contextual model read before it: the number of ``documents``, the
    ``corpus_size`` and ``seed`` of their draw, and the context's ``hash``."""
    prompt_origin: str = "not recorded"
    """Whose prompts these are, ``none`` where nothing stood before a text. Summaries of earlier
    versions do not say it."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The scores of one model on the tasks that were asked for."""

    model: str
    identity: str
    dtype: str
    tasks: Mapping[str, str]
    """The type of every task that was asked for."""
    scores: Mapping[str, TaskScore]
    failed: Mapping[str, str]
    """Why a task has no score. A mean is over the tasks that have one."""
    versions: Mapping[str, str]

    @property
    def missing(self) -> list[str]:
        return [name for name in self.tasks if name not in self.scores]

    @property
    def type_means(self) -> dict[str, float]:
        """The mean of each type that has a score, in the order of MTEB(eng, v1)."""
        return _type_means(list(self.scores.values()))

    @property
    def mean_over_types(self) -> float | None:
        return _mean(list(self.type_means.values()))

    @property
    def mean_over_tasks(self) -> float | None:
        return _mean([each.score for each in self.scores.values()])

    @property
    def coverage(self) -> str:
        return f"{len(self.scores)} of {len(self.tasks)} tasks"

    def table(self) -> Table:
        """Scores and means, times 100 as is the custom."""
        table = Table(title=f"{self.model} ({self.coverage}, scores times 100)")
        table.add_column("task")
        table.add_column("metric")
        table.add_column("score", justify="right")
        for each in self.scores.values():
            table.add_row(each.name, each.metric, _percent(each.score))
        table.add_section()
        means = self.type_means
        for type_ in (*TYPES, *(other for other in means if other not in TYPES)):
            table.add_row(type_, "mean", _percent(means.get(type_)))
        table.add_section()
        table.add_row("mean over types", "", _percent(self.mean_over_types))
        table.add_row("mean over tasks", "", _percent(self.mean_over_tasks))
        return table

    def text(self) -> str:
        """The table, whose prompts were used, and each missing task with the reason."""
        lines = [as_text(self.table()).rstrip(), f"prompts: {self._prompt_origins()}"]
        lines += [f"missing: {name}: {self.failed.get(name, 'not run')}" for name in self.missing]
        return "\n".join(lines) + "\n"

    def _prompt_origins(self) -> str:
        tasks = Counter(each.prompt_origin for each in self.scores.values())
        if tasks.keys() <= {"none"}:
            return "none"
        return ", ".join(f"{origin} for {n} task{'s' * (n > 1)}" for origin, n in tasks.items())

    def write(self, path: Path) -> None:
        """Write everything as JSON, the means among it."""
        content = asdict(self) | {
            "coverage": self.coverage,
            "missing": self.missing,
            "type_means": self.type_means,
            "mean_over_types": self.mean_over_types,
            "mean_over_tasks": self.mean_over_tasks,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, content)

    @classmethod
    def read(cls, path: Path) -> "Summary":
        """Read back what ``write`` wrote."""
        content = json.loads(path.read_text(encoding="utf-8"))
        scores = {
            name: TaskScore(**(each | {"splits": tuple(each["splits"])}))
            for name, each in content["scores"].items()
        }
        own = ("model", "identity", "dtype", "tasks", "failed", "versions")
        return cls(scores=scores, **{key: content[key] for key in own})


def comparison(before: Summary, after: Summary) -> Table:
    """Each task's score before, after and the difference, times 100.

    The means are over the tasks that have both scores, and of the same data, else they would
    compare different tasks.
    """
    same = before.model == after.model
    models = f"{before.model}, before and after" if same else f"{before.model} and {after.model}"
    table = Table(title=f"{models} (scores times 100)")
    table.add_column("task")
    table.add_column("metric")
    for column in ("before", "after", "difference"):
        table.add_column(column, justify="right")
    names = list(dict.fromkeys([*before.tasks, *after.tasks]))
    for name in names:
        pair = [summary.scores.get(name) for summary in (before, after)]
        metric = next((each.metric for each in pair if each), "")
        scores = (each.score if each else None for each in pair)
        table.add_row(name, metric, *_change(*scores, comparable=_alike(*pair)))
    table.add_section()
    both = [name for name in names if _alike(before.scores.get(name), after.scores.get(name))]
    sides = [[summary.scores[name] for name in both] for summary in (before, after)]
    types = [_mean(list(_type_means(scores).values())) for scores in sides]
    tasks = [_mean([each.score for each in scores]) for scores in sides]
    table.add_row("mean over types", "", *_change(*types))
    table.add_row(f"mean over {len(both)} tasks", "", *_change(*tasks))
    return table


def as_text(table: Table, *, width: int = 100) -> str:
    """A table as plain characters, for files and pipes."""
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(table)
    return stream.getvalue()


def _type_means(scores: Sequence[TaskScore]) -> dict[str, float]:
    present = {each.type for each in scores}
    order = [type_ for type_ in TYPES if type_ in present] + sorted(present - set(TYPES))
    return {type_: fmean(each.score for each in scores if each.type == type_) for type_ in order}


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _percent(score: float | None) -> str:
    return "-" if score is None else f"{100 * score:.2f}"


def _alike(one: TaskScore | None, other: TaskScore | None) -> bool:
    """Whether two scores are of the same data, counted the same way."""
    if one is None or other is None:
        return False
    return (one.metric, one.revision, one.splits) == (other.metric, other.revision, other.splits)


def _change(
    before: float | None, after: float | None, *, comparable: bool = True
) -> tuple[str, str, str]:
    difference = "-"
    if comparable and before is not None and after is not None:
        difference = f"{100 * (after - before):+.2f}"
    return _percent(before), _percent(after), difference
