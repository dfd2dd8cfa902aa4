"""Which documents are no negatives of which queries, whatever they score."""

import numpy as np
from numpy.typing import NDArray

from embedkit.mining.corpus import Corpus, Ids


class Exclusions:
    """A query excludes the positives of all rows with its text, its own text, and its labels.

    Of a label, it excludes the positives of all rows that have it.
    """

    def __init__(self, corpus: Corpus) -> None:
        self._documents = len(corpus.documents)
        own = _pairs_of_equal_text(corpus)
        queries = np.concatenate([corpus.query_of, own[0]])
        documents = np.concatenate([corpus.document_of, own[1]])
        self._stated = self._keys(queries, documents)
        self._counts = np.bincount(
            self._stated // max(self._documents, 1), minlength=len(corpus.queries)
        )
        labelled = corpus.label_of >= 0
        labels = corpus.label_of[labelled]
        self._labelled = self._keys(labels, corpus.document_of[labelled])
        self._labels = _lists(corpus.query_of[labelled], labels, len(corpus.queries))

    def count(self, queries: Ids) -> int:
        """The most documents that any of ``queries`` excludes, its labels apart."""
        return int(self._counts[queries].max(initial=0))

    def __call__(self, queries: Ids, documents: Ids) -> NDArray[np.bool_]:
        """Which of ``documents`` ``(q, n)`` are excluded for ``queries`` ``(q,)``."""
        excluded = _among(queries[:, None] * self._documents + documents, self._stated)
        for label in self._labels[queries].T:
            same = _among(label[:, None] * self._documents + documents, self._labelled)
            excluded |= same & (label >= 0)[:, None]
        return excluded

    def _keys(self, owners: Ids, documents: Ids) -> Ids:
        return np.unique(owners * self._documents + documents)


def _pairs_of_equal_text(corpus: Corpus) -> tuple[Ids, Ids]:
    _, queries, documents = np.intersect1d(
        corpus.queries.hashes, corpus.documents.hashes, assume_unique=True, return_indices=True
    )
    return queries.astype(np.int64), documents.astype(np.int64)


def _lists(owners: Ids, values: Ids, count: int) -> Ids:
    """The distinct values of each owner, ``(count, most)``, filled up with -1."""
    pairs = np.unique(np.stack([owners, values], axis=1), axis=0)
    owners, values = pairs[:, 0], pairs[:, 1]
    sizes = np.bincount(owners, minlength=count)
    lists = np.full((count, int(sizes.max(initial=0))), -1, dtype=np.int64)
    lists[owners, np.arange(len(owners)) - (np.cumsum(sizes) - sizes)[owners]] = values
    return lists


def _among(keys: Ids, found: Ids) -> NDArray[np.bool_]:
    """Which of ``keys`` are in ``found``, which is sorted."""
    if not len(found):
        return np.zeros(keys.shape, dtype=bool)
    places = np.minimum(np.searchsorted(found, keys), len(found) - 1)
    return np.asarray(found[places] == keys)
