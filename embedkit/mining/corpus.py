"""The distinct queries and documents of a source, by number. Their texts stay on disk."""

import hashlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.data.pairs.leaks import fold
from embedkit.data.pairs.records import Records

Ids = NDArray[np.int64]

_POSITIVE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """The distinct queries, or the distinct documents, in the order in which they first come up."""

    name: str
    hashes: NDArray[np.uint64]
    """Of each text, without differences of case and of white space."""
    identity: str
    """Changes with any of the texts."""
    texts: Callable[[Ids], list[str]]
    """The texts of some numbers, in the first of their spellings."""

    def __len__(self) -> int:
        return len(self.hashes)


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """What is searched and for whom.

    The documents are all positives and hard negatives of the source. Two texts that differ in case
    or white space alone are one. Takes about 60 bytes of memory for each query, positive and
    negative.

    Shapes: R rows; ``query_of`` and ``document_of`` ``(R,)`` are the numbers of a row's query and
    positive; ``label_of`` ``(R,)`` names the row's label, and is -1 where there is none.
    """

    queries: Side
    documents: Side
    query_of: Ids
    document_of: Ids
    label_of: Ids


def open_corpus(records: Records) -> Corpus:
    """Read a source once, from the first row to the last."""
    queries, documents = array("Q"), array("Q")
    rows, places = array("q"), array("q")
    labels: dict[str, int] = {}
    label_of = array("q")
    scanned = records.table.scan(("query", "positive", "negatives", "label"))
    for row, (query, positive, negatives, label) in enumerate(scanned):
        queries.append(text_hash(query))
        label_of.append(-1 if label is None else labels.setdefault(label, len(labels)))
        for place, text in enumerate((positive, *negatives), start=_POSITIVE):
            documents.append(text_hash(text))
            rows.append(row)
            places.append(place)
    query_hashes, query_firsts, query_of = _numbered(queries)
    hashes, firsts, numbers = _numbered(documents)
    own = np.array(rows, dtype=np.int64)[firsts]
    at = np.array(places, dtype=np.int64)[firsts]
    positives = np.array(places, dtype=np.int64) == _POSITIVE
    return Corpus(
        Side(
            "queries",
            query_hashes,
            _identity(records, query_firsts),
            _queries(records, query_firsts),
        ),
        Side("documents", hashes, _identity(records, own, at), _documents(records, own, at)),
        query_of,
        numbers[positives],
        np.array(label_of, dtype=np.int64),
    )


def text_hash(text: str) -> int:
    """Eight bytes that name a text without its differences of case and of white space."""
    digest = hashlib.blake2b(fold(text).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _numbered(hashes: "array[int]") -> tuple[NDArray[np.uint64], Ids, Ids]:
    """The distinct hashes as they come up, where each comes up first, and the number of each."""
    found, first, numbers = np.unique(
        np.array(hashes, dtype=np.uint64), return_index=True, return_inverse=True
    )
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return found[order], first[order].astype(np.int64), rank[numbers].astype(np.int64)


def _queries(records: Records, rows: Ids) -> Callable[[Ids], list[str]]:
    def texts(numbers: Ids) -> list[str]:
        return [text for (text,) in records.table.take(rows[numbers].tolist(), ("query",))]

    return texts


def _documents(records: Records, rows: Ids, places: Ids) -> Callable[[Ids], list[str]]:
    def texts(numbers: Ids) -> list[str]:
        taken = records.table.take(rows[numbers].tolist(), ("positive", "negatives"))
        return [
            positive if place == _POSITIVE else negatives[place]
            for place, (positive, negatives) in zip(places[numbers], taken, strict=True)
        ]

    return texts


def _identity(records: Records, *places: NDArray[Any]) -> str:
    digest = hashlib.sha256(records.table.facts.content.encode())
    for each in places:
        digest.update(each.tobytes())
    return digest.hexdigest()
