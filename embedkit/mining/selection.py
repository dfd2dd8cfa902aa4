"""From the candidates of a query to the negatives of a row: window, margin, number."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit import rng
from embedkit.mining.corpus import Ids
from embedkit.mining.search import Scores
from embedkit.mining.settings import MiningSettings


@dataclass(frozen=True, slots=True, eq=False)
class Selected:
    """The negatives of some rows.

    Shapes: R rows, N negatives asked for; ``documents`` and ``scores`` ``(R, N)``, best first, -1
    and minus infinity where there are fewer; ``positive_scores`` ``(R,)``.
    """

    documents: Ids
    scores: Scores
    positive_scores: Scores
    candidates: int
    """In the window of ranks."""
    above_margin: int
    """Candidates left out since they score too near to the positive, or above it."""
    outranked: int
    """Rows in which a candidate of any rank scores above the positive."""


def select(
    candidates: NDArray[Any], positive_scores: Scores, rows: Ids, settings: MiningSettings
) -> Selected:
    """Choose the negatives of ``rows``; a row's draw is a function of the seed and its number.

    Shapes: candidates ``(R, depth)``, best first; positive_scores and rows ``(R,)``.
    """
    window = candidates[:, settings.skip : settings.depth]
    there = window["document"] >= 0
    admitted = there & (window["score"] <= limits(positive_scores, settings)[:, None])
    order = _order(admitted, rows, settings)
    kept = np.take_along_axis(admitted, order, 1)
    return Selected(
        np.where(kept, np.take_along_axis(window["document"], order, 1), -1),
        np.where(kept, np.take_along_axis(window["score"], order, 1), np.float32(-np.inf)),
        positive_scores,
        int(there.sum()),
        int((there & ~admitted).sum()),
        int((candidates["score"][:, 0] > positive_scores).sum()),
    )


def limits(positive_scores: Scores, settings: MiningSettings) -> Scores:
    """The highest score that a negative of each positive may have."""
    if settings.margin_kind == "none":
        return np.full(positive_scores.shape, np.inf, dtype=np.float32)
    # Of the size of the positive's score, so that it lies below one that is below zero too.
    scale = np.abs(positive_scores) if settings.margin_kind == "relative" else 1
    return np.asarray(positive_scores - settings.margin * scale, dtype=np.float32)


def _order(admitted: NDArray[np.bool_], rows: Ids, settings: MiningSettings) -> Ids:
    """Where in the window the negatives of each row stand, those that are admitted first."""
    top = np.argsort(~admitted, axis=1, kind="stable")
    if settings.sampling == "random":
        for own, row, count in zip(top, rows, admitted.sum(axis=1), strict=True):
            if count > settings.negatives:
                key = rng.fold_in(settings.seed, "mined", int(row))
                drawn = rng.permuted(np.arange(settings.negatives), int(count), key)
                own[: settings.negatives] = own[np.sort(drawn)]
    return top[:, : settings.negatives]
