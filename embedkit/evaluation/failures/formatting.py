"""Writes failures as text for the terminal, as CSV or as JSON."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from embedkit.evaluation.comparing.statistics import LEVEL
from embedkit.evaluation.failures.changes import Change, Document, Failures, TaskChanges
from embedkit.evaluation.settings import FailuresFormat
from embedkit.evaluation.tables import as_csv

_WIDTH = 110
"""Number of characters of a text that are shown."""
_SHOWN = 3
"""Number of documents in front, and of relevant ones, that are shown."""


def format_failures(found: Failures, format: FailuresFormat = "text") -> str:
    """Write failures as text, or as CSV or JSON with whole texts and all documents."""
    match format:
        case "text":
            return _as_text(found)
        case "csv":
            return _as_csv(found)
        case "json":
            return json.dumps(asdict(found), indent=2, ensure_ascii=False) + "\n"


def _as_text(found: Failures) -> str:
    """Return a paragraph for each task, and one for each query that is listed."""
    lines = []
    for task in found.tasks:
        lines += [*_summary(found, task), ""]
        for change in task.changes:
            lines += [*_query(change), ""]
    lines += [f"{note}." for note in found.notes]
    return "\n".join(lines).rstrip() + "\n"


def _as_csv(found: Failures) -> str:
    """Return a line for each query; of several documents, ids and texts are JSON lists."""
    heads = ["task", "outcome", "part", "split", "subset", "query", "query_text"]
    heads += ["first_score", "second_score", "first_rank", "second_rank"]
    heads += ["front", "front_texts", "relevant", "relevant_texts", "looks"]
    rows = []
    for task in found.tasks:
        for one in task.changes:
            row = [task.task.task, one.outcome, *one.key, one.query, *one.scores, *one.ranks]
            documents = [*_columns(one.front), *_columns(one.relevant)]
            rows.append([*row, *documents, "; ".join(one.looks)])
    return as_csv(heads, rows)


def _summary(found: Failures, changes: TaskChanges) -> Iterator[str]:
    task = changes.task
    yield (
        f"{task.task}: {task.metric} {task.first:.2f} in {found.first}, {task.second:.2f} in "
        f"{found.second} ({task.difference:+.2f}, {100 * LEVEL:.0f} % over queries {task.interval})"
    )
    alike = (task.queries or 0) - changes.won - changes.lost
    yield f"  {found.second} wins {changes.won} queries, loses {changes.lost}, and ties {alike}"
    for outcome, looks in changes.looks.items():
        if looks:
            counts = ", ".join(f"{count} {look}" for look, count in looks.items())
            yield f"  {outcome}: {counts}"


def _query(change: Change) -> Iterator[str]:
    ranks = " -> ".join("not found" if rank is None else str(rank) for rank in change.ranks)
    scores = " -> ".join(f"{score:.1f}" for score in change.scores)
    yield f"  {change.outcome}: {_shown(Document(change.key[3], change.query))}"
    yield f"    score {scores}, rank of the first relevant document {ranks}"
    for label, documents in (("in front", change.front), ("relevant", change.relevant)):
        for document in documents[:_SHOWN]:
            yield f"    {label}: {_shown(document)}"
        if (more := len(documents) - _SHOWN) > 0:
            yield f"    {label}: {more} more"
    if change.looks:
        yield f"    looks like: {', '.join(change.looks)}"


def _shown(document: Document) -> str:
    """Return id and text of a document in one line, shortened."""
    text = " ".join((document.text or "").split())
    return f"{document.id}  {text[:_WIDTH]}{'...' if len(text) > _WIDTH else ''}".rstrip()


def _columns(documents: Sequence[Document]) -> list[str]:
    lists = [document.id for document in documents], [document.text for document in documents]
    return [json.dumps(values, ensure_ascii=False) for values in lists]
