"""Distinct queries and documents of a source, and which documents are no negatives of a query."""

import hashlib
from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embedkit.data.pairs.leaks import fold
from embedkit.data.pairs.records import Records
from embedkit.data.pairs.table import Table

Ids = NDArray[np.int64]

_POSITIVE = 1
"""Place of a row's positive; its query has place 0, and its negatives follow."""


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """Distinct queries, or distinct documents, in the order of their first occurrences."""

    name: str
    table: Table
    hashes: NDArray[np.uint64]
    """``text_hash`` of each text."""
    rows: Ids
    """Row of each text's first occurrence."""
    places: Ids
    """Place in that row, see ``_POSITIVE``."""

    def __len__(self) -> int:
        return len(self.hashes)

    def texts(self, numbers: Ids) -> list[str]:
        """Return the texts of some numbers, each as it is spelled first."""
        columns = ("query", "positive", "negatives")
        rows = self.table.take(self.rows[numbers].tolist(), columns)
        return [
            (query, positive, *negatives)[place]
            for place, (query, positive, negatives) in zip(self.places[numbers], rows, strict=True)
        ]

    @property
    def identity(self) -> str:
        """Hash of all texts."""
        places = self.rows.tobytes() + self.places.tobytes()
        return hashlib.sha256(self.table.facts.content.encode() + places).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """Queries of a source, and the documents that are searched for their negatives.

    The documents are all positives and hard negatives of the source. Two texts that differ only in
    case or white space are one. Takes about 60 bytes of memory for each query, positive and
    negative.

    Shapes: R rows; ``query_of`` and ``document_of`` ``(R,)`` are the numbers of a row's query and
    positive; ``label_of`` ``(R,)`` numbers the row's label, and is -1 where there is none.
    """

    queries: Side
    documents: Side
    query_of: Ids
    document_of: Ids
    label_of: Ids


def open_corpus(records: Records) -> Corpus:
    """Read a source once, from the first row to the last."""
    query_hashes, document_hashes = array("Q"), array("Q")
    document_rows, document_places, label_of = array("q"), array("q"), array("q")
    labels: dict[str, int] = {}
    scanned = records.table.scan(("query", "positive", "negatives", "label"))
    for row, (query, positive, negatives, label) in enumerate(scanned):
        query_hashes.append(text_hash(query))
        label_of.append(-1 if label is None else labels.setdefault(label, len(labels)))
        for place, text in enumerate((positive, *negatives), start=_POSITIVE):
            document_hashes.append(text_hash(text))
            document_rows.append(row)
            document_places.append(place)
    queries, query_rows, query_of = _numbered(query_hashes)
    documents, first, document_of = _numbered(document_hashes)
    rows, places = np.array(document_rows)[first], np.array(document_places)
    return Corpus(
        Side("queries", records.table, queries, query_rows, np.zeros_like(query_rows)),
        Side("documents", records.table, documents, rows, places[first]),
        query_of,
        document_of[places == _POSITIVE],
        np.array(label_of),
    )


def text_hash(text: str) -> int:
    """Return a hash of eight bytes that ignores differences of case and white space."""
    digest = hashlib.blake2b(fold(text).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _numbered(hashes: "array[int]") -> tuple[NDArray[np.uint64], Ids, Ids]:
    """Return the distinct hashes by first occurrence, those occurrences, and each hash's number."""
    values = np.array(hashes, dtype=np.uint64)
    distinct, first, numbers = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return distinct[order], first[order], rank[numbers]


class Exclusions:
    """A query excludes its own text, and the positives of all rows with its text or its labels."""

    def __init__(self, corpus: Corpus) -> None:
        self.num_documents = len(corpus.documents)
        _, same_queries, same_documents = np.intersect1d(
            corpus.queries.hashes, corpus.documents.hashes, assume_unique=True, return_indices=True
        )
        queries = np.concatenate([corpus.query_of, same_queries])
        documents = np.concatenate([corpus.document_of, same_documents])
        self._stated = np.unique(queries * self.num_documents + documents)
        owners = self._stated // max(self.num_documents, 1)
        self._counts = np.bincount(owners, minlength=len(corpus.queries))
        labelled = corpus.label_of >= 0
        labels = corpus.label_of[labelled]
        self._labelled = np.unique(labels * self.num_documents + corpus.document_of[labelled])
        pairs = np.unique(np.stack([corpus.query_of[labelled], labels], axis=1), axis=0)
        self._labels = pairs[:, 1]
        # The labels of query i stand between its start and that of the next query.
        self._starts = np.searchsorted(pairs[:, 0], np.arange(len(corpus.queries) + 1))

    def count(self, queries: Ids) -> int:
        """Return the most documents that any of ``queries`` excludes, its labels apart."""
        return int(self._counts[queries].max(initial=0))

    def __call__(self, queries: Ids, documents: Ids) -> NDArray[np.bool_]:
        """Return which of ``documents`` ``(q, n)`` are excluded for ``queries`` ``(q,)``."""
        excluded = _contains(self._stated, queries[:, None] * self.num_documents + documents)
        starts, ends = self._starts[queries], self._starts[queries + 1]
        for number in range(int((ends - starts).max(initial=0))):
            some = starts + number < ends
            label = self._labels[starts[some] + number]
            keys = label[:, None] * self.num_documents + documents[some]
            excluded[some] |= _contains(self._labelled, keys)
        return excluded


def _contains(ordered: Ids, keys: Ids) -> NDArray[np.bool_]:
    """Return which of ``keys`` are in ``ordered``; ``numpy.isin`` would sort both anew."""
    if not len(ordered):
        return np.zeros(keys.shape, dtype=bool)
    places = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
    return np.asarray(ordered[places] == keys)
