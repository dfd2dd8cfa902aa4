"""One training pair, as it is made of a row and written to a table."""

from dataclasses import dataclass


@dataclass(slots=True)
class Pair:
    query: str
    positive: str
    negatives: list[str]
    label: str | None = None
    concept: str | None = None
    topic: str | None = None
    score: float | None = None
    scores: list[float] | None = None
    """A teacher's scores of the positive and the negatives."""
    held_out: bool = False
