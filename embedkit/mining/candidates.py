"""Find the candidates of every query, and choose the negatives of every row among them."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit import rng
from embedkit.distributed.progress import track_progress
from embedkit.mining.audit import Audit
from embedkit.mining.corpus import Exclusions, Ids
from embedkit.mining.search import Scores, Search
from embedkit.mining.settings import MiningSettings
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
) -> NDArray[Any]:
    """Return the ``depth`` best candidates of each query, best first, which lie in ``path``.

    What a killed process has written to ``path`` is not searched for again.

    Shapes: queries ``(Q, D)`` -> ``(Q, depth)`` of ``CANDIDATE``.
    """
    file = BlockFile(path, CANDIDATE, rows=len(queries), width=depth, block=_QUERIES)
    best = partial(_best, search, queries, exclusions, depth)
    with track_progress("searching for queries", len(queries), file.done()) as advance:
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


def select(
    candidates: NDArray[Any],
    positive_scores: Scores,
    rows: Ids,
    settings: MiningSettings,
    audit: Audit,
) -> tuple[Ids, Scores]:
    """Choose the negatives of ``rows``, and count them and their candidates in ``audit``.

    A row's draw is a function of the seed and its number.

    Shapes: candidates ``(R, depth)``, best first; positive_scores and rows ``(R,)``; the result,
    documents and their scores, both ``(R, negatives)``, best first, -1 and minus infinity where
    there are fewer.
    """
    window = candidates[:, settings.skip : settings.depth]
    present = window["document"] >= 0
    admitted = present & (window["score"] <= limits(positive_scores, settings)[:, None])
    order = np.argsort(~admitted, axis=1, kind="stable")
    if settings.sampling == "random":
        for row_order, row, count in zip(order, rows, admitted.sum(axis=1), strict=True):
            if count > settings.negatives:
                key = rng.fold_in(settings.seed, "mined", int(row))
                drawn = rng.permuted(np.arange(settings.negatives), int(count), key)
                row_order[: settings.negatives] = row_order[np.sort(drawn)]
    order = order[:, : settings.negatives]
    kept = np.take_along_axis(admitted, order, 1)
    documents = np.where(kept, np.take_along_axis(window["document"], order, 1), -1)
    scores = np.take_along_axis(window["score"], order, 1)
    scores = np.where(kept, scores, np.float32(-np.inf))
    audit.candidates += int(present.sum())
    audit.above_margin += int((present & ~admitted).sum())
    audit.outranked += int((candidates["score"][:, 0] > positive_scores).sum())
    audit.add(documents, scores, positive_scores)
    return documents, scores


def limits(positive_scores: Scores, settings: MiningSettings) -> Scores:
    """Return the highest score that a negative of each positive may have."""
    if settings.margin_kind == "none":
        return np.full(positive_scores.shape, np.inf, dtype=np.float32)
    # A share of the absolute score lies below the positive even if that is below zero.
    scale = np.abs(positive_scores) if settings.margin_kind == "relative" else 1
    return np.asarray(positive_scores - settings.margin * scale, dtype=np.float32)


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
    waiting = np.arange(len(numbers))
    while len(waiting):
        short, step = [], max(1, _FOUND // count)
        for rows in np.split(waiting, range(step, len(waiting), step)):
            scores, found = search.top(vectors[rows], count)
            # A search that ended in -1 has found all that it can find.
            more = (found[:, -1] >= 0) & (count < documents)
            left_out = (found < 0) | exclusions(numbers[rows], found)
            found[left_out], scores[left_out] = -1, -np.inf
            # A stable sort keeps the order of those that stay.
            order = np.argsort(left_out, axis=1, kind="stable")[:, :depth]
            best["document"][rows, : order.shape[1]] = np.take_along_axis(found, order, 1)
            best["score"][rows, : order.shape[1]] = np.take_along_axis(scores, order, 1)
            short.append(rows[more & (best["document"][rows, -1] < 0)])
        waiting, count = np.concatenate(short), min(documents, _WIDEN * count)
    return best
