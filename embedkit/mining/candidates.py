"""The best documents of every query that may be its negatives, found block by block of queries."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from embedkit.mining.corpus import Ids
from embedkit.mining.exclusions import Exclusions
from embedkit.mining.search import Scores, Search
from embedkit.mining.stages import stage
from embedkit.storage.blocks import BlockFile, mapped

CANDIDATE = np.dtype([("document", "<i8"), ("score", "<f4")])
"""-1 and minus infinity where there are fewer than asked for."""
_QUERIES = 4096
"""Searched for between two blocks on disk."""
_FOUND = 2**23
"""Documents that a search returns at a time, over all queries."""
_WIDEN = 4
_RECALLED = 256
"""Queries that recall is measured on."""


def find_candidates(
    path: Path,
    search: Search,
    queries: NDArray[Any],
    exclusions: Exclusions,
    *,
    depth: int,
    documents: int,
    console: Console,
) -> NDArray[Any]:
    """The ``depth`` best candidates of each query, ``(Q, depth)`` of ``CANDIDATE``, best first.

    Goes on where a killed process left off.

    Args:
        path: the file to write or to go on with.
        search: knows the documents.
        queries: their vectors, ``(Q, D)``.
        exclusions: what is no candidate of whom.
        depth: candidates of each query.
        documents: how many there are.
        console: where progress goes.
    """
    file = BlockFile(path, CANDIDATE, rows=len(queries), width=depth, block=_QUERIES)
    with stage(console, "searching for queries", len(queries), file.done()) as advance:
        for block in file.missing():
            numbers = file.rows_of(block)
            vectors = queries[numbers].astype(np.float32)
            file.write(block, _admitted(search, vectors, numbers, exclusions, depth, documents))
            advance(len(numbers))
    return mapped(path, CANDIDATE, rows=len(queries), width=depth)


def recall(
    found: NDArray[Any],
    exact: Search,
    queries: NDArray[Any],
    exclusions: Exclusions,
    documents: int,
) -> float:
    """The share of the exact candidates that ``found`` holds, for queries at even distances.

    Args:
        found: what ``find_candidates`` returned, ``(Q, depth)``.
        exact: finds the true ones.
        queries: vectors of the queries, ``(Q, D)``.
        exclusions: what is no candidate of whom.
        documents: how many there are.
    """
    numbers = np.unique(np.linspace(0, len(queries) - 1, _RECALLED).astype(np.int64))
    vectors = queries[numbers].astype(np.float32)
    true = _admitted(exact, vectors, numbers, exclusions, found.shape[1], documents)
    hits = wanted = 0
    for own, best in zip(found[numbers]["document"], true["document"], strict=True):
        there = best[best >= 0]
        hits, wanted = hits + int(np.isin(there, own).sum()), wanted + len(there)
    return hits / max(wanted, 1)


def _admitted(
    search: Search,
    vectors: Scores,
    numbers: Ids,
    exclusions: Exclusions,
    depth: int,
    documents: int,
) -> NDArray[Any]:
    """Search, and again for more where exclusions left too few."""
    admitted = np.empty((len(numbers), depth), CANDIDATE)
    # One query may exclude thousands: it is searched for again, and the others are not.
    count = min(documents, depth + min(depth, exclusions.count(numbers)))
    waiting = [(np.arange(len(numbers)), count)]
    while waiting:
        rows, count = waiting.pop()
        if len(rows) > 1 and len(rows) * count > _FOUND:
            half = len(rows) // 2
            waiting += [(rows[:half], count), (rows[half:], count)]
            continue
        scores, found = search.top(vectors[rows], count)
        left_out = (found < 0) | exclusions(numbers[rows], found)
        # Stable, so that those that stay keep their order.
        order = np.argsort(left_out, axis=1, kind="stable")[:, :depth]
        kept = ~np.take_along_axis(left_out, order, 1)
        admitted[rows] = _candidates(
            np.where(kept, np.take_along_axis(found, order, 1), -1),
            np.where(kept, np.take_along_axis(scores, order, 1), np.float32(-np.inf)),
            depth,
        )
        # A search that ended in -1 has shown all that it has.
        short = (kept.sum(axis=1) < depth) & (found[:, -1] >= 0)
        if count < documents and short.any():
            waiting.append((rows[short], min(documents, _WIDEN * count)))
    return admitted


def _candidates(documents: Ids, scores: Scores, depth: int) -> NDArray[Any]:
    rows = np.empty((len(documents), depth), CANDIDATE)
    rows["document"], rows["score"] = -1, -np.inf
    rows["document"][:, : documents.shape[1]] = documents
    rows["score"][:, : scores.shape[1]] = scores
    return rows
