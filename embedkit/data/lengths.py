"""How long the texts of a source are, in tokens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from embedkit.data.records import Records

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)

_SAMPLE = 2000


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts, prompts and special tokens included."""

    rows: int
    """The rows that were read, spread evenly over the source."""
    quantiles: Mapping[str, tuple[int, ...]]
    """By role, at ``QUANTILES``; without ``negatives`` where there are none."""


def token_lengths(records: Records, tokenize: Callable[[list[str]], Sequence[int]]) -> Lengths:
    """Measure a sample of ``records``; ``tokenize`` gives the length of each text."""
    size = min(len(records), _SAMPLE)
    sample = records.take(np.linspace(0, len(records) - 1, size).astype(np.int64))
    query, document = records.prompts.query, records.prompts.document
    texts = {
        "query": [query + record.query for record in sample],
        "positive": [document + record.positive for record in sample],
        "negatives": [document + text for record in sample for text in record.negatives],
    }
    quantiles = {role: _quantiles(tokenize(each)) for role, each in texts.items() if each}
    return Lengths(size, quantiles)


def _quantiles(lengths: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(each) for each in np.quantile(lengths, QUANTILES, method="higher"))
