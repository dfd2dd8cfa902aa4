"""How long the texts of a source are, in tokens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from embedkit.data.records import Records
from embedkit.data.token_store import TokenStore

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)

SAMPLE = 2000
"""Rows that are measured of a source, at most."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts, prompts and special tokens included."""

    rows: int
    """The rows that were read, spread evenly over the source."""
    by_role: Mapping[str, Sequence[int]]
    """Of query, positive and negatives; without ``negatives`` where there are none."""

    @property
    def quantiles(self) -> dict[str, tuple[int, ...]]:
        """By role, at ``QUANTILES``."""
        return {role: quantiles(lengths) for role, lengths in self.by_role.items()}

    def truncated(self, query_limit: int, document_limit: int) -> float:
        """The share of texts that are longer than their limit."""
        limits = {role: query_limit if role == "query" else document_limit for role in self.by_role}
        cut = sum(
            int((np.asarray(self.by_role[role]) > limit).sum()) for role, limit in limits.items()
        )
        return cut / sum(map(len, self.by_role.values()))


def token_lengths(records: Records, tokenize: Callable[[list[str]], Sequence[int]]) -> Lengths:
    """Measure a sample of ``records``; ``tokenize`` gives the length of each text."""
    size = min(len(records), SAMPLE)
    sample = records.take(np.linspace(0, len(records) - 1, size).astype(np.int64))
    query, document = records.prompts.query, records.prompts.document
    texts = {
        "query": [query + record.query for record in sample],
        "positive": [document + record.positive for record in sample],
        "negatives": [document + text for record in sample for text in record.negatives],
    }
    return Lengths(size, {role: tokenize(each) for role, each in texts.items() if each})


def stored_lengths(store: TokenStore, framing: int) -> tuple[int, ...]:
    """Token counts of all documents at ``QUANTILES``, with ``framing`` special tokens for each."""
    if not len(store):
        return (0,) * len(QUANTILES)
    longest = max(int(each.max()) for each in store.lengths())
    counts = np.zeros(longest + 1, dtype=np.int64)
    for lengths in store.lengths():
        counts += np.bincount(lengths, minlength=longest + 1)
    below = np.cumsum(counts)
    ranks = [np.ceil(each * (len(store) - 1)) for each in QUANTILES]
    return tuple(int(np.searchsorted(below, rank, side="right")) + framing for rank in ranks)


def quantiles(lengths: Sequence[int]) -> tuple[int, ...]:
    """The lengths at ``QUANTILES``."""
    return tuple(int(each) for each in np.quantile(lengths, QUANTILES, method="higher"))
