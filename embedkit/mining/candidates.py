"""The best documents of every query that may be its negatives, found block by block of queries."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from embedkit.distributed.progress import track_progress
from embedkit.mining.corpus import Exclusions, Ids
from embedkit.mining.search import Search
from embedkit.storage.blocks import BlockFile

CANDIDATE = np.dtype([("document", "<i8"), ("score", "<f4")])
"""Number of a document and its score: -1 and minus infinity where there are too few documents."""
_QUERIES = 4096
"""Number of queries in a block."""
_FOUND = 2**23
"""Largest number of documents that a search returns, over all of its queries."""
_WIDEN = 4
_RECALLED = 256
"""Number of queries that recall is measured on."""


def find_candidates(
    path: Path,
    search: Search,
    queries: NDArray[Any],
    exclusions: Exclusions,
    *,
    depth: int,
    console: Console,
) -> NDArray[Any]:
    """Return the ``depth`` best candidates of each query, best first, which lie in ``path``.

    What a killed process has written to ``path`` is not searched for again.

    Shapes: queries ``(Q, D)`` -> ``(Q, depth)`` of ``CANDIDATE``.
    """
    file = BlockFile(path, CANDIDATE, rows=len(queries), width=depth, block=_QUERIES)
    best = partial(_best, search, queries, exclusions, depth)
    with track_progress(console, "searching for queries", len(queries), file.done()) as advance:
        file.fill(file.missing(), best, advance)
    return file.mapped()


def recall(
    candidates: NDArray[Any], exact: Search, queries: NDArray[Any], exclusions: Exclusions
) -> float:
    """Return the share of the exact candidates that were found, for queries at even distances.

    Shapes: candidates ``(Q, depth)`` of ``CANDIDATE``, queries ``(Q, D)``.
    """
    numbers = np.unique(np.linspace(0, len(queries) - 1, _RECALLED).astype(np.int64))
    best = _best(exact, queries, exclusions, candidates.shape[1], numbers)["document"]
    hits = sum(
        int(np.isin(exact_row[exact_row >= 0], row).sum())
        for exact_row, row in zip(best, candidates[numbers]["document"], strict=True)
    )
    return hits / max(int((best >= 0).sum()), 1)


def _best(
    search: Search, queries: NDArray[Any], exclusions: Exclusions, depth: int, numbers: Ids
) -> NDArray[Any]:
    """Return the candidates of the queries ``numbers``: search again where exclusions left too few.

    Shapes: queries ``(Q, D)``, numbers ``(q,)`` -> ``(q, depth)`` of ``CANDIDATE``.
    """
    vectors, documents = queries[numbers].astype(np.float32), exclusions.num_documents
    best = np.empty((len(numbers), depth), CANDIDATE)
    best["document"], best["score"] = -1, -np.inf
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
        # A stable sort keeps the order of those that stay.
        order = np.argsort(left_out, axis=1, kind="stable")[:, :depth]
        kept = ~np.take_along_axis(left_out, order, 1)
        columns = ("document", found, -1), ("score", scores, -np.inf)
        for name, values, absent in columns:
            values = np.where(kept, np.take_along_axis(values, order, 1), absent)
            best[name][rows, : order.shape[1]] = values
        # A search that ended in -1 has found all that it can find.
        short = (kept.sum(axis=1) < depth) & (found[:, -1] >= 0)
        if count < documents and short.any():
            waiting.append((rows[short], min(documents, _WIDEN * count)))
    return best
