"""Says in plain words whether a trained model answers queries better than before."""

from collections.abc import Iterator
from pathlib import Path

from embedkit.errors import UserError
from embedkit.evaluation.comparing.by_task import TaskDifference
from embedkit.evaluation.comparing.statistics import LEVEL
from embedkit.evaluation.failures.changes import TaskChanges, failures

CHANGED = 10
"""Queries that are shown of each task, those whose score changed most."""
_WIDTH = 100
"""Number of characters of a text that are shown."""


def verdict(before: Path, after: Path) -> Iterator[str]:
    """Yield lines on each retrieval and reranking task that two evaluations have results of.

    The first line of a task counts the queries that are answered better and worse, and says whether
    the difference may be chance; the others are the queries whose score changed most.
    """
    try:
        found = failures(before, after, limit=CHANGED)
    except UserError:
        # No task has single queries, which the table of scores shows well enough.
        return
    for changes in found.tasks:
        yield _sentence(changes)
        # Python sorts stably, so that equal changes stay in the order of the list.
        for change in sorted(changes.changes, key=lambda one: -abs(one.gain))[:CHANGED]:
            ranks = " -> ".join("not found" if rank is None else str(rank) for rank in change.ranks)
            text = " ".join((change.query or change.key[3]).split())
            short = text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..."
            better = "better" if change.outcome == "won" else "worse"
            yield f"  {better}: first answer at rank {ranks}: {short}"


def _sentence(changes: TaskChanges) -> str:
    task, queries = changes.task, changes.task.queries or 0
    return (
        f"{task.task}: of {queries} queries, {changes.won} are answered better and {changes.lost} "
        "worse: "
        f"{_judgement(task)}"
    )


def _judgement(task: TaskDifference) -> str:
    difference = task.over_queries
    if difference is None or difference.low is None or difference.high is None:
        return f"{task.difference:+.1f}, from too few queries for an interval"
    bounds = f"{100 * LEVEL:.0f} % {difference.low:+.1f} to {difference.high:+.1f}"
    if difference.low > 0:
        return f"a real gain ({bounds})"
    if difference.high < 0:
        return f"a real loss ({bounds})"
    return f"the difference may be chance ({bounds})"
