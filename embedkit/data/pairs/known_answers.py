"""Documents known to answer a query in any row of a source, found by hashes of texts."""

import hashlib
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedkit.data.pairs.table import Table
from embedkit.distributed.progress import track_progress
from embedkit.storage import cache

FORMAT = 1
"""Part of every key: raise it when texts are hashed, or their hashes written, otherwise."""
_KIND, _FILE = "known_answers", "pairs.npy"
_STEP = 100_000
"""Rows between two updates of the progress."""

Hashes = NDArray[np.int64]


class KnownAnswers:
    """Answers of the queries that have several in one source, memory-mapped; pickles as its path.

    Only queries with several answers are stored: a query's single answer is the positive of every
    row that has the query, and so of its row in the batch. A pair takes 16 bytes on disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Sorted by query, each query with the distinct answers of all its rows.
        self._queries, self._answers = np.load(folder / _FILE, mmap_mode="r")

    def __len__(self) -> int:
        return len(self._queries)

    def __reduce__(self) -> tuple[type["KnownAnswers"], tuple[Path]]:
        return KnownAnswers, (self._folder,)

    def of(self, queries: Hashes) -> Hashes:
        """Return hashes of queries and their answers, for each distinct one of ``queries``.

        Shapes: ``(q,)`` -> ``(k, 2)``; k is 0 where no query has several answers.
        """
        distinct = np.unique(queries)
        starts = np.searchsorted(self._queries, distinct, side="left")
        counts = np.searchsorted(self._queries, distinct, side="right") - starts
        before = np.cumsum(counts) - counts
        places = np.repeat(starts - before, counts) + np.arange(counts.sum())
        return np.stack([self._queries[places], self._answers[places]], axis=1)


def open_known_answers(name: str, table: Table) -> KnownAnswers:
    """Open the known answers of a table of pairs called ``name``, which are cached by its content.

    The first time, all rows on disk are read, also those that a sample leaves out.
    """
    whole = Table(table.path)
    key = f"{FORMAT}-{whole.facts.content[:32]}"
    return KnownAnswers(cache.built(_KIND, key, partial(_write, name=name, table=whole)))


def text_hash(text: str) -> int:
    """Return a 63-bit hash above 0 of a text, white space at its ends aside."""
    digest = hashlib.blake2b(text.strip().encode(), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "little") % (2**63 - 2)


def _write(folder: Path, name: str, table: Table) -> None:
    pairs = np.empty((2, len(table)), dtype=np.int64)
    with track_progress(f"hashing the answers of {name}", len(table)) as advance:
        for row, texts in enumerate(table.scan(("query", "positive"))):
            pairs[:, row] = [text_hash(text) for text in texts]
            if (row + 1) % _STEP == 0:
                advance(_STEP)
        advance(len(table) % _STEP)
    np.save(folder / _FILE, _several(pairs))


def _several(pairs: Hashes) -> Hashes:
    """Return the distinct pairs of the queries that have several, sorted by query.

    Shapes: ``(2, n)`` -> ``(2, k)``.
    """
    pairs = pairs[:, np.lexsort(pairs[::-1])]
    first = np.ones(pairs.shape[1], dtype=bool)
    first[1:] = (pairs[:, 1:] != pairs[:, :-1]).any(axis=0)
    pairs = pairs[:, first]
    _, counts = np.unique(pairs[0], return_counts=True)
    return np.asarray(pairs[:, np.repeat(counts > 1, counts)])
