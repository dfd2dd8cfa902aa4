"""Counts how long the texts of a source are, in tokens."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, starmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from embedkit.data.pairs.records import Record, Records
from embedkit.data.sources.streams import blocks_of
from embedkit.data.text.token_store import TokenStore
from embedkit.storage import cache
from embedkit.storage.atomic import write_text
from embedkit.storage.hashing import sha256_of_json
from embedkit.tokens.tokenizer import Tokenize, identity_of

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)

_CHARACTERS = 2**20
"""Characters that are tokenized at a time."""
FORMAT = 1
"""Part of every key: raise it when other tokens are counted, or counts are written otherwise."""

OnProgress = Callable[[int], object]
"""Progress callback: rows counted so far."""


@dataclass(slots=True)
class Lengths:
    """Token counts, prompts and special tokens included."""

    rows: int = 0
    """Number of rows that were read."""
    counts: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """Numbers of texts with 0, 1, 2, ... tokens, by role: query, positive and negatives. A role
    without texts is missing."""

    def add(self, role: str, lengths: Sequence[int] | NDArray[np.int64]) -> None:
        """Count texts of such lengths."""
        new = np.bincount(np.asarray(lengths, dtype=np.int64))
        if len(new):
            longer, shorter = new, self.counts.get(role, new[:0])
            if len(shorter) > len(longer):
                longer, shorter = shorter, longer
            self.counts[role] = longer + np.pad(shorter, (0, len(longer) - len(shorter)))

    @property
    def quantiles(self) -> dict[str, tuple[int, ...]]:
        """Lengths at ``QUANTILES``, by role."""
        return {role: quantiles(counts) for role, counts in self.counts.items()}

    def truncated(self, query_limit: int, document_limit: int) -> float:
        """Return the share of texts that are longer than their limit."""
        limits = {role: query_limit if role == "query" else document_limit for role in self.counts}
        too_long = sum(int(self.counts[role][limit + 1 :].sum()) for role, limit in limits.items())
        return too_long / sum(int(counts.sum()) for counts in self.counts.values())


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
    return _read(folder / "counted.json")


def stored_lengths(store: TokenStore, framing: int) -> tuple[int, ...]:
    """Return documents' token counts at ``QUANTILES``, with ``framing`` special tokens each."""
    lengths = Lengths()
    for stored in store.lengths():
        lengths.add("text", stored + framing)
    return lengths.quantiles.get("text", (0,) * len(QUANTILES))


def quantiles(counts: NDArray[np.int64]) -> tuple[int, ...]:
    """Return the lengths at ``QUANTILES``, of so many texts with 0, 1, 2, ... tokens each."""
    below = np.cumsum(counts)
    ranks = np.ceil(np.array(QUANTILES) * (below[-1] - 1))
    return tuple(np.searchsorted(below, ranks, side="right").tolist())


def _count_all(folder: Path, records: Records, tokenize: Tokenize, on_progress: OnProgress) -> None:
    path = folder / "counted.json"
    lengths = _read(path) if path.is_file() else Lengths()
    columns = records.table.scan(("query", "positive", "negatives"))
    rest = starmap(Record, islice(columns, lengths.rows, None))
    for block in blocks_of(rest, _characters, _CHARACTERS):
        _count(lengths, records, tokenize, block)
        counts = {
            role: [[int(tokens), int(counts[tokens])] for tokens in np.flatnonzero(counts)]
            for role, counts in lengths.counts.items()
        }
        write_text(path, json.dumps({"rows": lengths.rows, "counts": counts}))
        on_progress(lengths.rows)


def _characters(record: Record) -> int:
    return len(record.query) + len(record.positive) + sum(map(len, record.negatives))


def _count(lengths: Lengths, records: Records, tokenize: Tokenize, rows: Sequence[Record]) -> None:
    query, document = records.prompts.query, records.prompts.document
    lengths.add("query", tokenize.lengths([row.query for row in rows], query))
    lengths.add("positive", tokenize.lengths([row.positive for row in rows], document))
    negatives = [text for row in rows for text in row.negatives]
    lengths.add("negatives", tokenize.lengths(negatives, document))
    lengths.rows += len(rows)


def _read(path: Path) -> Lengths:
    stored = json.loads(path.read_text())
    lengths = Lengths(stored["rows"])
    for role, pairs in stored["counts"].items():
        lengths.counts[role] = np.zeros(pairs[-1][0] + 1, dtype=np.int64)
        for tokens, texts in pairs:
            lengths.counts[role][tokens] = texts
    return lengths
