"""Stores pairs on disk: an Arrow file of equal batches, memory-mapped and read by row."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from embedkit import rng
from embedkit.data.pairs.pair import Pair
from embedkit.storage.hashing import sha256_of_json

_SCHEMA = pa.schema(
    {
        "query": pa.string(),
        "positive": pa.string(),
        "negatives": pa.list_(pa.string()),
        "label": pa.string(),
        "concept": pa.string(),
        "topic": pa.string(),
    }
)
_SCORE = pa.field("score", pa.float64())
_SCORES = pa.field("scores", pa.list_(pa.float64()))
_BATCH = 1024
"""Rows of every batch but the last, so that a row's batch is known without an index."""


@dataclass
class Facts:
    """Counts of a table's rows, which lie beside it in a JSON file."""

    content: str = ""
    """A hash of all rows, in order."""
    rows: int = 0
    with_negatives: int = 0
    with_label: int = 0


class TableWriter:
    """Writes pairs one at a time, with their score if they are ``scored``; a context manager.

    If they are ``taught``, a teacher's scores of their documents are written too.

    The table is whole, and its facts lie beside it, when the block is left without an error.
    """

    def __init__(self, path: Path, *, scored: bool, taught: bool = False) -> None:
        self._path = path
        self._schema = pa.schema([*_SCHEMA, *[_SCORE] * scored, *[_SCORES] * taught])
        self._file = pa.ipc.new_file(str(path), self._schema)
        self._block: list[dict[str, Any]] = []
        self._hash = hashlib.sha256()
        self._facts = Facts()

    def add(self, pair: Pair) -> None:
        """Append a row."""
        self._block.append({name: getattr(pair, name) for name in self._schema.names})
        if len(self._block) == _BATCH:
            self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file:
            if kind is None and self._block:
                self._flush()
        if kind is None:
            self._facts.content = self._hash.hexdigest()
            self._path.with_suffix(".json").write_text(json.dumps(vars(self._facts)))

    def _flush(self) -> None:
        block, facts = self._block, self._facts
        self._file.write_batch(pa.RecordBatch.from_pylist(block, schema=self._schema))
        self._hash.update(json.dumps(block).encode())
        facts.rows += len(block)
        facts.with_negatives += sum(bool(row["negatives"]) for row in block)
        facts.with_label += sum(row["label"] is not None for row in block)
        self._block = []


class Table:
    """Reads rows at random and keeps none in memory. Its pickle is its path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.facts = Facts(**json.loads(path.with_suffix(".json").read_text()))
        self.stored_rows = self.facts.rows
        """Number of rows on disk, of which a sample has some."""
        self._file = pa.ipc.open_file(pa.memory_map(str(path)))

    def __len__(self) -> int:
        return self.facts.rows

    def take(self, rows: Sequence[int], columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Yield the values of ``columns`` for each of ``rows``, in their order."""
        batches: dict[int, list[Any]] = {}
        for row in rows:
            if not 0 <= row < len(self):
                raise IndexError(f"row {row} of {len(self)}")
            number, index = divmod(self._stored(row), _BATCH)
            if number not in batches:
                batch = self._file.get_batch(number)
                batches[number] = [batch.column(name) for name in columns]
            yield tuple(column[index].as_py() for column in batches[number])

    def scan(self, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Yield the values of ``columns`` for all rows, a batch in memory at a time."""
        for number in range(self._file.num_record_batches):
            batch = self._file.get_batch(number)
            yield from zip(*(batch.column(name).to_pylist() for name in columns), strict=True)

    def most_negatives(self) -> int:
        """Return the largest number of negatives of a row on disk, without reading their texts."""
        if not self.facts.with_negatives:
            return 0
        batches = map(self._file.get_batch, range(self._file.num_record_batches))
        lengths = (pc.list_value_length(batch.column("negatives")) for batch in batches)
        return max(pc.max(each).as_py() or 0 for each in lengths)

    def _scan_by_row(self, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Yield what ``scan`` does, for a table that has some of the rows of its file."""
        for first in range(0, len(self), _BATCH):
            yield from self.take(range(first, min(first + _BATCH, len(self))), columns)

    def _stored(self, row: int) -> int:
        """Return the row's number in the file."""
        return row

    def __reduce__(self) -> tuple[type["Table"], tuple[Any, ...]]:
        return Table, (self.path,)


class Sample(Table):
    """Rows drawn from a table without replacement, in their order there.

    The draw is a function of the seed and the number of rows in the table; a smaller sample is a
    part of a larger one. The table on disk stays whole, for samples of other sizes.
    """

    def __init__(self, path: Path, size: int, seed: int) -> None:
        super().__init__(path)
        whole = self.facts
        key = rng.fold_in(seed, "max_rows")
        self._drawn = np.sort(rng.permuted(np.arange(size), whole.rows, key))
        content = sha256_of_json([whole.content, size, seed])
        self.facts = replace(whole, rows=size, content=content)
        self._arguments = path, size, seed

    def scan(self, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        yield from self._scan_by_row(columns)

    def _stored(self, row: int) -> int:
        return int(self._drawn[row])

    def __reduce__(self) -> tuple[type[Table], tuple[Any, ...]]:
        return Sample, self._arguments


class Part(Table):
    """Some rows of a table or sample, in their order there: those listed, or all the others.

    Args:
        whole: table that has the rows.
        rows: numbers of rows of ``whole``, in rising order.
        listed: whether the part has these rows, or all but these.
    """

    def __init__(self, whole: Table, rows: NDArray[np.int64], *, listed: bool) -> None:
        super().__init__(whole.path)
        self._arguments = whole, rows, listed
        self._whole, self._rows, self._listed = whole, rows, listed
        # The others are numbered without a list of them: each is as far on as rows are left out.
        self._gaps = rows - np.arange(len(rows))
        size = len(rows) if listed else len(whole) - len(rows)
        digest = hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()
        content = sha256_of_json([whole.facts.content, digest, listed])
        self.facts = replace(whole.facts, rows=size, content=content)

    def scan(self, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        yield from self._scan_by_row(columns)

    def _stored(self, row: int) -> int:
        if self._listed:
            return self._whole._stored(int(self._rows[row]))
        return self._whole._stored(row + int(np.searchsorted(self._gaps, row, side="right")))

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _part, self._arguments


def _part(whole: Table, rows: NDArray[np.int64], listed: bool) -> Part:
    """Open a part again from its pickle."""
    return Part(whole, rows, listed=listed)
