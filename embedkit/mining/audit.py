"""Audit of mined negatives: how many there are, how hard they are, and what is wrong with them."""

from array import array
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from embedkit.data.pairs.leaks import fold
from embedkit.mining.corpus import Ids, text_hash
from embedkit.mining.search import Scores

_EDGES = np.linspace(-1, 1, 41)
_BAR = 30
_ROWS = 8192
"""Number of rows that are read at a time."""


@dataclass
class Audit:
    """Counts over the rows that were written."""

    rows: int = 0
    negatives: int = 0
    asked: int = 0
    """Number of negatives that were asked for in each row."""
    short: int = 0
    """Number of rows with fewer negatives than asked for."""
    without: int = 0
    """Number of rows without negatives."""
    candidates: int = 0
    """Number of candidates in the window of ranks, over all rows."""
    above_margin: int = 0
    """Number of candidates that scored too near to the positive, or above it."""
    outranked: int = 0
    """Number of rows in which a candidate of any rank scores above the positive."""
    equal_to_a_positive: int = 0
    """Number of negatives that are, case and white space apart, a positive of their query or its
    own text: counted on the file that was written."""
    most_used: int = 0
    """Number of occurrences of the most frequent negative."""
    recall: float | None = None
    """Recall of the search, where it is not exact."""
    positive_scores: list[int] = field(default_factory=lambda: [0] * (len(_EDGES) - 1))
    """Histogram of the scores of positives, in steps of 0.05 from -1 to 1."""
    negative_scores: list[int] = field(default_factory=lambda: [0] * (len(_EDGES) - 1))

    def add(self, documents: Ids, scores: Scores, positive_scores: Scores) -> None:
        """Count the negatives of some more rows, of the shapes that ``select`` returns."""
        found = documents >= 0
        counts = found.sum(axis=1)
        self.rows += len(counts)
        self.negatives += int(counts.sum())
        self.short += int((counts < self.asked).sum())
        self.without += int((counts == 0).sum())
        histograms = (self.positive_scores, self.negative_scores)
        for histogram, values in zip(histograms, (positive_scores, scores[found]), strict=True):
            # Scores of fp16 vectors may lie a little above 1.
            more = np.histogram(np.clip(values, -1, 1), _EDGES)[0]
            histogram[:] = (histogram + more).tolist()

    def text(self) -> str:
        """Return the counts and histograms as lines of text."""
        facts = {
            "rows": f"{self.rows:,}",
            "negatives": f"{self.negatives:,}",
            f"rows with fewer than {self.asked}": _share(self.short, self.rows),
            "rows with none": _share(self.without, self.rows),
            "candidates above the margin": _share(self.above_margin, self.candidates),
            "rows whose positive is outranked": _share(self.outranked, self.rows),
            "negatives equal to a positive": f"{self.equal_to_a_positive:,}",
            "most frequent negative": f"in {self.most_used:,} rows",
        }
        if self.recall is not None:
            facts["recall of the search"] = f"{self.recall:.3f}"
        lines = [f"{name:<34}{value}" for name, value in facts.items()]
        return "\n".join([*lines, "", *self._histogram()]) + "\n"

    def _histogram(self) -> list[str]:
        histograms = np.array([self.positive_scores, self.negative_scores])
        used = np.flatnonzero(histograms.sum(axis=0))
        if not len(used):
            return []
        lines = [f"{'score':>13}  {'positives':<{_BAR}}  negatives"]
        highest = np.maximum(histograms.max(axis=1), 1)
        for place in range(used[0], used[-1] + 1):
            bars = [
                f"{'#' * round((_BAR - 10) * count / most):<{_BAR - 9}}{count:>9,}"
                for count, most in zip(histograms[:, place].tolist(), highest.tolist(), strict=True)
            ]
            span = f"{_EDGES[place]:5.2f} .. {_EDGES[place + 1]:5.2f}"
            lines.append(f"{span}  {'  '.join(bars)}".rstrip())
        return lines


def inspect(path: Path) -> tuple[int, int]:
    """Count the negatives that equal their query or a positive of it, and the most frequent one.

    Reads the file that was written, and knows nothing of how it was made.
    """
    stated, mined, negatives = array("Q"), array("Q"), array("Q")
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(_ROWS, columns=["query", "positive", "negatives"]):
            for row in batch.to_pylist():
                query, texts = row["query"], row["negatives"]
                stated.extend(_pair_hash(query, text) for text in (row["positive"], query))
                mined.extend(_pair_hash(query, text) for text in texts)
                negatives.extend(map(text_hash, texts))
    equal = np.isin(np.array(mined, dtype=np.uint64), np.array(stated, dtype=np.uint64)).sum()
    counts = np.unique(np.array(negatives, dtype=np.uint64), return_counts=True)[1]
    return int(equal), int(counts.max(initial=0))


def _pair_hash(query: str, document: str) -> int:
    return text_hash(f"{fold(query)}\0{fold(document)}")


def _share(count: int, whole: int) -> str:
    return f"{count:,} ({count / max(whole, 1):.1%})"
