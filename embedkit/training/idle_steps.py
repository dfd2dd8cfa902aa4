"""Notices a run that learns nothing: steps in a row without any gradient."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

LIMIT = 20
"""Steps in a row without gradient that a source may take."""


class IdleSteps:
    """Counts, for each source, its latest steps in a row whose gradient was exactly zero."""

    def __init__(self) -> None:
        self._counts = Counter[str]()

    def add(self, block: Sequence[Mapping[str, Any]]) -> str | None:
        """Count the steps of a block of metrics; return why the run should stop, if it should."""
        for line in block:
            source = line["source"]
            self._counts[source] = 0 if line["grad_norm"] else self._counts[source] + 1
            if self._counts[source] == LIMIT:
                return _reason(line)
        return None


def _reason(line: Mapping[str, Any]) -> str:
    told = (
        f"step {line['step']}: the run learns nothing from source {line['source']}, whose last "
        f"{LIMIT} steps had no gradient"
    )
    if line.get("negatives") == 0:
        return (
            f"{told}, since no query had a negative: metrics.jsonl says what masked them; give it "
            "hard negatives, other labels or larger batches, or leave it out"
        )
    return f"{told}: leave it out, or look at its rows with embedkit batch"
