"""What was mined, in numbers: how hard the negatives are, and what is wrong with them."""

from array import array
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from embedkit.data.pairs.leaks import fold
from embedkit.mining.corpus import text_hash
from embedkit.mining.search import Scores
from embedkit.mining.selection import Selected

_EDGES = np.linspace(-1, 1, 41)
_BAR = 30
_AT_ONCE = 8192


@dataclass
class Audit:
    """Counts over the rows of the result."""

    rows: int = 0
    negatives: int = 0
    asked: int = 0
    """Negatives a row."""
    short: int = 0
    """Rows with fewer negatives than asked for."""
    without: int = 0
    """Rows with none."""
    candidates: int = 0
    """In the window of ranks, over all rows."""
    above_margin: int = 0
    """Candidates that scored too near to the positive, or above it."""
    outranked: int = 0
    """Rows in which a candidate of any rank scores above the positive."""
    equal_to_a_positive: int = 0
    """Negatives that are, case and white space apart, a positive of their query or its own text:
    counted on the file that was written."""
    most_used: int = 0
    """Rows in which the most frequent negative stands."""
    recall: float | None = None
    """Of the search, where it is not exact."""
    positive_scores: list[int] = field(default_factory=lambda: [0] * (len(_EDGES) - 1))
    """A histogram in steps of 0.05, from -1 to 1."""
    negative_scores: list[int] = field(default_factory=lambda: [0] * (len(_EDGES) - 1))

    def add(self, selected: Selected) -> None:
        """Count some more rows."""
        counts = (selected.documents >= 0).sum(axis=1)
        self.rows += len(counts)
        self.negatives += int(counts.sum())
        self.asked = selected.documents.shape[1]
        self.short += int((counts < self.asked).sum())
        self.without += int((counts == 0).sum())
        self.candidates += selected.candidates
        self.above_margin += selected.above_margin
        self.outranked += selected.outranked
        _count(self.positive_scores, selected.positive_scores)
        _count(self.negative_scores, selected.scores[selected.documents >= 0])

    def table(self) -> dict[str, Any]:
        """The fields as JSON has them."""
        return asdict(self)

    def text(self) -> str:
        """Lines for a reader."""
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
        used = [p + n > 0 for p, n in zip(self.positive_scores, self.negative_scores, strict=True)]
        if not any(used):
            return []
        first, last = used.index(True), len(used) - used[::-1].index(True)
        lines = [f"{'score':>13}  {'positives':<{_BAR}}  negatives"]
        for place in range(first, last):
            bars = (
                _bar(counts[place], max(counts))
                for counts in (self.positive_scores, self.negative_scores)
            )
            span = f"{_EDGES[place]:5.2f} .. {_EDGES[place + 1]:5.2f}"
            lines.append(f"{span}  {'  '.join(bars)}".rstrip())
        return lines


def inspect(path: Path) -> tuple[int, int]:
    """Negatives that equal a positive of their query or its text, and how often the commonest is.

    Reads the file that was written, and knows nothing of how it was made.
    """
    stated, mined, negatives = array("Q"), array("Q"), array("Q")
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(_AT_ONCE, columns=["query", "positive", "negatives"]):
            columns = (
                batch.column(name).to_pylist() for name in ("query", "positive", "negatives")
            )
            for query, positive, own in zip(*columns, strict=True):
                stated.extend((_together(query, positive), _together(query, query)))
                mined.extend(_together(query, text) for text in own)
                negatives.extend(map(text_hash, own))
    equal = np.isin(np.array(mined, dtype=np.uint64), np.array(stated, dtype=np.uint64)).sum()
    counts = np.unique(np.array(negatives, dtype=np.uint64), return_counts=True)[1]
    return int(equal), int(counts.max(initial=0))


def _together(query: str, document: str) -> int:
    return text_hash(f"{fold(query)}\0{fold(document)}")


def _count(histogram: list[int], scores: Scores) -> None:
    # fp16 vectors may give a little more than 1.
    counts = np.histogram(np.clip(scores, -1, 1), _EDGES)[0]
    histogram[:] = [old + int(new) for old, new in zip(histogram, counts, strict=True)]


def _share(count: int, whole: int) -> str:
    return f"{count:,} ({count / max(whole, 1):.1%})"


def _bar(count: int, most: int) -> str:
    length = round((_BAR - 10) * count / max(most, 1))
    return f"{'#' * length:<{_BAR - 9}}{count:>9,}"
