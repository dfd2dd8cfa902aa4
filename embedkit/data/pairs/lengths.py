"""Counts how long the texts of a source are, in tokens."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, starmap
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from embedkit.data.manifests.manifest import Prompts
from embedkit.data.pairs.records import Record, Records
from embedkit.data.sources.streams import blocks_of
from embedkit.data.text.token_store import TokenStore
from embedkit.recipe import Data
from embedkit.storage import cache
from embedkit.storage.atomic import write_text
from embedkit.storage.hashing import sha256_of_json
from embedkit.tokens.tokenizer import Tokenize, identity_of

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)

_CHARACTERS = 2**20
"""Characters that are tokenized at a time."""
_KIND = "lengths"
FORMAT = 1
"""Part of every key: raise it when other tokens are counted, or counts are written otherwise."""


@dataclass(slots=True)
class Lengths:
    """Token counts, prompts and special tokens included."""

    rows: int = 0
    """Number of rows that were read."""
    counts: dict[str, Counter[int]] = field(default_factory=dict)
    """Numbers of texts by their tokens, by role: query, positive and negatives. A role without
    texts is missing."""

    def add(self, rows: Sequence[Record], tokenize: Tokenize, prompts: Prompts) -> None:
        """Count the texts of ``rows``, behind their prompts."""
        for role, prompt, texts in (
            ("query", prompts.query, [row.query for row in rows]),
            ("positive", prompts.document, [row.positive for row in rows]),
            ("negatives", prompts.document, [text for row in rows for text in row.negatives]),
        ):
            if texts:
                self.counts.setdefault(role, Counter()).update(tokenize.lengths(texts, prompt))
        self.rows += len(rows)

    def truncated(self, query_limit: int, document_limit: int) -> float:
        """Return the share of texts that are longer than their limit."""
        too_long = 0
        for role, counts in self.counts.items():
            limit = query_limit if role == "query" else document_limit
            too_long += sum(texts for tokens, texts in counts.items() if tokens > limit)
        return too_long / sum(counts.total() for counts in self.counts.values())


def sampled_lengths(records: Records, tokenizer: PreTrainedTokenizerBase, rows: int) -> Lengths:
    """Measure at most so many rows, spread evenly over the source."""
    size = min(len(records), rows)
    sample = records.take(np.linspace(0, len(records) - 1, size).astype(np.int64))
    lengths = Lengths()
    lengths.add(sample, Tokenize(tokenizer), records.prompts)
    return lengths


def all_lengths(
    records: Records,
    tokenizer: PreTrainedTokenizerBase,
    on_progress: Callable[[int], object] = lambda rows: None,
) -> Lengths:
    """Measure every text of a source; the first time, keep what is found in the cache.

    A count that is interrupted or killed leaves its work to the next. ``on_progress`` is called
    with the number of rows counted so far.
    """
    tokenize = Tokenize(tokenizer)

    def count(folder: Path) -> None:
        lengths = _read(folder)
        columns = records.table.scan(("query", "positive", "negatives"))
        rest = starmap(Record, islice(columns, lengths.rows, None))
        for block in blocks_of(rest, _characters, _CHARACTERS):
            lengths.add(block, tokenize, records.prompts)
            counts = {role: sorted(counts.items()) for role, counts in lengths.counts.items()}
            counted = json.dumps({"rows": lengths.rows, "counts": counts})
            write_text(folder / "counted.json", counted)
            on_progress(lengths.rows)

    return _read(cache.built(_KIND, _key(records, tokenizer), count, resumable=True))


def known_lengths(records: Records, tokenizer: PreTrainedTokenizerBase, rows: int) -> Lengths:
    """Return the lengths of all texts if they were measured before, else of so many rows."""
    kept = _read(cache.root() / _KIND / _key(records, tokenizer))
    return kept if kept.rows else sampled_lengths(records, tokenizer, rows)


def limits_of(records: Records, data: Data) -> tuple[int, int]:
    """Return the numbers of tokens to which a run truncates the queries and documents of a source.

    A source's own limits come before those of the recipe.
    """
    own = records.description
    return (
        own.max_query_tokens or data.max_query_tokens,
        own.max_document_tokens or data.max_document_tokens,
    )


def stored_lengths(store: TokenStore, framing: int) -> dict[float, int]:
    """Return documents' token counts at ``QUANTILES``, with ``framing`` special tokens each."""
    counts: Counter[int] = Counter()
    for stored in store.lengths():
        # There may be a billion documents, of far fewer lengths.
        texts = np.bincount(stored + framing)
        lengths = np.flatnonzero(texts)
        counts.update(dict(zip(lengths.tolist(), texts[lengths].tolist(), strict=True)))
    return quantiles(counts) if counts else dict.fromkeys(QUANTILES, 0)


def quantiles(counts: Mapping[int, int]) -> dict[float, int]:
    """Return the lengths at ``QUANTILES``, of so many texts of each length."""
    lengths, texts = zip(*sorted(counts.items()), strict=True)
    below = np.cumsum(texts)
    places = np.searchsorted(below, np.ceil(np.array(QUANTILES) * (below[-1] - 1)), side="right")
    return {share: lengths[place] for share, place in zip(QUANTILES, places, strict=True)}


def _key(records: Records, tokenizer: PreTrainedTokenizerBase) -> str:
    made_of = {
        "content": records.table.facts.content,
        "prompts": records.prompts.model_dump(),
        "tokenizer": identity_of(tokenizer),
        "format": FORMAT,
    }
    return sha256_of_json(made_of)[:32]


def _characters(record: Record) -> int:
    return len(record.query) + len(record.positive) + sum(map(len, record.negatives))


def _read(folder: Path) -> Lengths:
    """Return what is counted already."""
    path = folder / "counted.json"
    if not path.is_file():
        return Lengths()
    stored = json.loads(path.read_text())
    counts = {role: Counter(dict(pairs)) for role, pairs in stored["counts"].items()}
    return Lengths(stored["rows"], counts)
