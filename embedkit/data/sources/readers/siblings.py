"""Rows of pairs whose hard negatives are the positives of siblings in the same file."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

MemberT = TypeVar("MemberT")


def others(family: list[MemberT], member: MemberT) -> list[MemberT]:
    """Return the other members of a family, from the member's own place on."""
    index = family.index(member)
    return family[index + 1 :] + family[:index]


def negatives_of(
    positive: str, siblings: Iterable[tuple[str, str]], limit: int
) -> Mapping[str, str]:
    """Return the first ``limit`` different texts of siblings, with the concepts they are about.

    ``siblings`` yields texts and concepts. It may be long, and is read no further than needed.
    """
    concepts: dict[str, str] = {}
    for text, concept in siblings:
        if len(concepts) == limit:
            break
        if text not in ("", positive):
            concepts.setdefault(text, concept)
    return concepts


def row_of(query: str, positive: str, id_: str, negatives: Mapping[str, str]) -> dict[str, Any]:
    """Return the row of a pair; ``negatives`` are texts and the concepts that they are about."""
    return {
        "query": query,
        "positive": positive,
        "negatives": [*negatives],
        "negative_concepts": [*negatives.values()],
        "id": id_,
    }
