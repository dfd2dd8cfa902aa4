"""Rows of pairs whose hard negatives are the positives of siblings in the same file."""

from collections.abc import Iterable
from itertools import islice
from typing import Any, TypeVar

MemberT = TypeVar("MemberT")


def others(family: list[MemberT], member: MemberT) -> list[MemberT]:
    """Return the other members of a family, from the member's own place on."""
    index = family.index(member)
    return family[index + 1 :] + family[:index]


def row_of(
    query: str, positive: str, id_: str, siblings: Iterable[tuple[str, str]], limit: int
) -> dict[str, Any]:
    """Return the row of a pair; ``siblings`` are texts and the concepts that they are about.

    The first ``limit`` different texts of siblings are the negatives.
    """
    concepts: dict[str, str] = {}
    for text, concept in siblings:
        if text not in ("", positive):
            concepts.setdefault(text, concept)
    kept = dict(islice(concepts.items(), limit))
    pair = {"query": query, "positive": positive, "negatives": [*kept]}
    return {**pair, "negative_concepts": [*kept.values()], "id": id_}
