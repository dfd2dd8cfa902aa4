"""Which documents are no negatives of which queries, whatever they score."""

import numpy as np
from numpy.typing import NDArray

from embedkit.mining.corpus import Corpus, Ids


class Exclusions:
    """A query excludes its own text, and the positives of all rows with its text or its labels."""

    def __init__(self, corpus: Corpus) -> None:
        self.num_documents = len(corpus.documents)
        _, same_queries, same_documents = np.intersect1d(
            corpus.queries.hashes, corpus.documents.hashes, assume_unique=True, return_indices=True
        )
        self._stated = self._keys(
            np.concatenate([corpus.query_of, same_queries]),
            np.concatenate([corpus.document_of, same_documents]),
        )
        self._counts = np.bincount(
            self._stated // max(self.num_documents, 1), minlength=len(corpus.queries)
        )
        labelled = corpus.label_of >= 0
        labels = corpus.label_of[labelled]
        self._labelled = self._keys(labels, corpus.document_of[labelled])
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

    def _keys(self, owners: Ids, documents: Ids) -> Ids:
        return np.unique(owners * self.num_documents + documents)


def _contains(ordered: Ids, keys: Ids) -> NDArray[np.bool_]:
    """Return which of ``keys`` are in ``ordered``; ``numpy.isin`` would sort both anew."""
    if not len(ordered):
        return np.zeros(keys.shape, dtype=bool)
    places = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
    return np.asarray(ordered[places] == keys)
