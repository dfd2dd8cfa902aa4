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
        pairs = np.unique(np.stack([corpus.query_of[labelled], labels], axis=1), axis=0)
        self._labels = pairs[:, 1]
        # Those of query i stand between the i-th and the next.
        self._places = np.searchsorted(pairs[:, 0], np.arange(len(corpus.queries) + 1))

    def count(self, queries: Ids) -> int:
        """The most documents that any of ``queries`` excludes, its labels apart."""
        return int(self._counts[queries].max(initial=0))

    def __call__(self, queries: Ids, documents: Ids) -> NDArray[np.bool_]:
        """Which of ``documents`` ``(q, n)`` are excluded for ``queries`` ``(q,)``."""
        excluded = _among(queries[:, None] * self._documents + documents, self._stated)
        starts, ends = self._places[queries], self._places[queries + 1]
        for number in range(int((ends - starts).max(initial=0))):
            some = starts + number < ends
            label = self._labels[starts[some] + number]
            keys = label[:, None] * self._documents + documents[some]
            excluded[some] |= _among(keys, self._labelled)
        return excluded

    def _keys(self, owners: Ids, documents: Ids) -> Ids:
        return np.unique(owners * self._documents + documents)


def _pairs_of_equal_text(corpus: Corpus) -> tuple[Ids, Ids]:
    _, queries, documents = np.intersect1d(
        corpus.queries.hashes, corpus.documents.hashes, assume_unique=True, return_indices=True
    )
    return queries.astype(np.int64), documents.astype(np.int64)


def _among(keys: Ids, found: Ids) -> NDArray[np.bool_]:
    """Which of ``keys`` are in ``found``, which is sorted."""
    if not len(found):
        return np.zeros(keys.shape, dtype=bool)
    places = np.minimum(np.searchsorted(found, keys), len(found) - 1)
    return np.asarray(found[places] == keys)
