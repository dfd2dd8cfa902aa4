"""How long the texts of a source are, in tokens."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from embedkit.data.pairs.records import Record, Records
from embedkit.data.text.token_store import TokenStore
from embedkit.storage import cache
from embedkit.storage.atomic import write_text
from embedkit.storage.hashing import sha256_of_json
from embedkit.tokens.tokenizer import Tokenize, identity_of

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)

_CHARACTERS = 2**20
"""Tokenized at a time."""
_COUNTED = "counted.json"
FORMAT = 1
"""Part of every key: raise it when other tokens are counted, or counts are written otherwise."""

OnProgress = Callable[[int], object]
"""Hears how many rows have been counted, every now and then."""


@dataclass(slots=True)
class Lengths:
    """Token counts, prompts and special tokens included."""

    rows: int = 0
    """The rows that were read."""
    counts: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """By role, query, positive and negatives: how many texts have 0, 1, 2, ... tokens. Of a role
    without texts there is nothing."""

    def add(self, role: str, lengths: Sequence[int] | NDArray[np.int64]) -> None:
        """Count texts of such lengths."""
        new = np.bincount(np.asarray(lengths, dtype=np.int64))
        if not len(new):
            return
        old = self.counts.get(role, np.zeros(0, dtype=np.int64))
        total = np.zeros(max(len(old), len(new)), dtype=np.int64)
        total[: len(old)] += old
        total[: len(new)] += new
        self.counts[role] = total

    @property
    def quantiles(self) -> dict[str, tuple[int, ...]]:
        """By role, at ``QUANTILES``."""
        return {role: quantiles(counts) for role, counts in self.counts.items()}

    def truncated(self, query_limit: int, document_limit: int) -> float:
        """The share of texts that are longer than their limit."""
        limits = {role: query_limit if role == "query" else document_limit for role in self.counts}
        cut = sum(int(self.counts[role][limit + 1 :].sum()) for role, limit in limits.items())
        return cut / sum(int(counts.sum()) for counts in self.counts.values())


def sampled_lengths(records: Records, tokenizer: PreTrainedTokenizerBase, rows: int) -> Lengths:
    """Measure at most so many rows, spread evenly over the source."""
    size = min(len(records), rows)
    sample = records.take(np.linspace(0, len(records) - 1, size).astype(np.int64))
    lengths = Lengths()
    _count(lengths, records, Tokenize(tokenizer), sample)
    return lengths


def all_lengths(
    records: Records,
    tokenizer: PreTrainedTokenizerBase,
    on_progress: OnProgress = lambda rows: None,
) -> Lengths:
    """Measure every text of a source; the first time, keep what is found in the cache.

    A count that is interrupted or killed leaves its work to the next.
    """
    made_of = {
        "content": records.table.facts.content,
        "prompts": records.prompts.model_dump(),
        "tokenizer": identity_of(tokenizer),
        "format": FORMAT,
    }
    build = partial(
        _count_all, records=records, tokenize=Tokenize(tokenizer), on_progress=on_progress
    )
    folder = cache.built("lengths", sha256_of_json(made_of)[:32], build, resumable=True)
    return _read(folder / _COUNTED)


def _count_all(folder: Path, records: Records, tokenize: Tokenize, on_progress: OnProgress) -> None:
    path = folder / _COUNTED
    lengths = _read(path) if path.is_file() else Lengths()
    for batch in _batches(records, start=lengths.rows):
        _count(lengths, records, tokenize, batch)
        _write(path, lengths)
        on_progress(lengths.rows)


def _count(lengths: Lengths, records: Records, tokenize: Tokenize, batch: Sequence[Record]) -> None:
    query, document = records.prompts.query, records.prompts.document
    lengths.add("query", tokenize.lengths([each.query for each in batch], query))
    lengths.add("positive", tokenize.lengths([each.positive for each in batch], document))
    negatives = [text for each in batch for text in each.negatives]
    lengths.add("negatives", tokenize.lengths(negatives, document))
    lengths.rows += len(batch)


def _batches(records: Records, start: int) -> Iterator[list[Record]]:
    """All rows from ``start`` on, so many at a time that their texts have some ``_CHARACTERS``."""
    batch: list[Record] = []
    size = 0
    columns = records.table.scan(("query", "positive", "negatives"))
    for query, positive, negatives in islice(columns, start, None):
        batch.append(Record(query, positive, tuple(negatives)))
        size += len(query) + len(positive) + sum(map(len, negatives))
        if size >= _CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _write(path: Path, lengths: Lengths) -> None:
    """As far as it goes, so that a kill finds the file as it was or as it is to be."""
    counts = {role: _sparse(counts) for role, counts in lengths.counts.items()}
    write_text(path, json.dumps({"rows": lengths.rows, "counts": counts}))


def _sparse(counts: NDArray[np.int64]) -> list[list[int]]:
    return [[int(tokens), int(counts[tokens])] for tokens in np.flatnonzero(counts)]


def _read(path: Path) -> Lengths:
    found = json.loads(path.read_text())
    lengths = Lengths(found["rows"])
    for role, pairs in found["counts"].items():
        counts = np.zeros(pairs[-1][0] + 1, dtype=np.int64)
        for tokens, texts in pairs:
            counts[tokens] = texts
        lengths.counts[role] = counts
    return lengths


def stored_lengths(store: TokenStore, framing: int) -> tuple[int, ...]:
    """Token counts of all documents at ``QUANTILES``, with ``framing`` special tokens for each."""
    lengths = Lengths()
    for stored in store.lengths():
        lengths.add("text", stored + framing)
    return quantiles(lengths.counts["text"]) if lengths.counts else (0,) * len(QUANTILES)


def quantiles(counts: NDArray[np.int64]) -> tuple[int, ...]:
    """The lengths at ``QUANTILES``, of so many texts with 0, 1, 2, ... tokens each."""
    below = np.cumsum(counts)
    ranks = [np.ceil(each * (below[-1] - 1)) for each in QUANTILES]
    return tuple(int(np.searchsorted(below, rank, side="right")) for rank in ranks)
