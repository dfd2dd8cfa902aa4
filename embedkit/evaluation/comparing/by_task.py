"""Two rows of a comparison task by task, with intervals over the queries of each task."""

from collections.abc import Sequence
from dataclasses import dataclass

from embedkit.evaluation.comparing.runs import Group
from embedkit.evaluation.comparing.statistics import FEWEST, Difference, paired

TIE = 0.005
"""Scores times 100 that are less than this apart are printed alike, and are a tie."""

_WITH_QUERIES = ("Retrieval", "Reranking")


@dataclass(frozen=True, slots=True)
class TaskDifference:
    """A task's scores times 100 in two rows."""

    task: str
    type: str
    metric: str
    first: float
    second: float
    queries: int | None = None
    """Number of queries over which the interval is; ``None`` without results of each query."""
    over_queries: Difference | None = None
    """Paired difference over the queries."""

    @property
    def difference(self) -> float:
        return self.second - self.first

    @property
    def interval(self) -> str:
        """The bounds over the queries in brackets, or the reason why there are none."""
        if self.over_queries is None or self.queries is None:
            return "-"
        if self.over_queries.low is None and self.queries >= FEWEST:
            return "[a part has 1 query]"  # Its variance is unknown.
        return self.over_queries.interval


@dataclass(frozen=True, slots=True)
class Contest:
    """A row against the first one, task by task."""

    first: str
    second: str
    tasks: tuple[TaskDifference, ...]

    @property
    def wins(self) -> int:
        return sum(task.difference >= TIE for task in self.tasks)

    @property
    def losses(self) -> int:
        return sum(task.difference <= -TIE for task in self.tasks)

    @property
    def ties(self) -> int:
        return len(self.tasks) - self.wins - self.losses

    @property
    def without_queries(self) -> list[str]:
        """Retrieval and reranking tasks of which some run has no results of single queries."""
        return [
            task.task
            for task in self.tasks
            if task.type in _WITH_QUERIES and task.over_queries is None
        ]


def contest(first: Group, second: Group, tasks: Sequence[str]) -> Contest:
    """Compare two rows on each of ``tasks``."""
    found = [_difference(first, second, task) for task in tasks]
    return Contest(first.title, second.title, tuple(found))


def _difference(first: Group, second: Group, task: str) -> TaskDifference:
    facts = first.runs[0].summary.scores[task]
    old, new = (float(group.scores([task]).mean()) for group in (first, second))
    queries = _query_differences(first, second, task) if facts.type in _WITH_QUERIES else {}
    return TaskDifference(
        task,
        facts.type,
        facts.metric,
        old,
        new,
        sum(map(len, queries.values())) or None,
        paired(*queries.values()) if queries else None,
    )


def _query_differences(
    first: Group, second: Group, task: str
) -> dict[tuple[str, str, str], list[float]]:
    """Return the difference of each query by part, split and subset, which count alike in a score.

    It is empty if some run has no results of single queries, or those of other queries: of other
    data.
    """
    old, new = first.query_scores(task), second.query_scores(task)
    if old is None or new is None or old.keys() != new.keys():
        return {}
    differences: dict[tuple[str, str, str], list[float]] = {}
    for key, score in old.items():
        differences.setdefault(key[:3], []).append(new[key] - score)
    return differences
