"""Contextual batches on disk, memory-mapped: which rows of which source make each batch.

``table.json`` records what the batches were made of, and their hash. ``sources/<number>/`` holds
the surrogate's vectors of a source, and in ``rows.i64`` its batches one after the other.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from embedkit.data.pairs.records import Records
from embedkit.data.vector_store import VectorStore
from embedkit.errors import DataError

HEADER = "table.json"


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """Facts about a source that its batches depend on."""

    name: str
    content: str
    """Hash of its rows."""
    rows: int
    batch_size: int
    """Requested batch size; a source with fewer rows is one batch of them all."""


class SourceBatches:
    """The batches of one source, memory-mapped. They pickle as the path of their folder."""

    def __init__(self, folder: Path, facts: SourceFacts, short_batch: bool) -> None:
        self.folder, self.facts, self._short_batch = folder, facts, short_batch
        self._order = read_order(folder, facts.rows)

    def __len__(self) -> int:
        full, rest = divmod(self.facts.rows, self.size)
        return full + int(self._short_batch and rest > 0)

    def __getitem__(self, batch: int) -> NDArray[np.int64]:
        """Return the rows of a batch, or raise ``IndexError``."""
        if not 0 <= batch < len(self):
            raise IndexError(f"batch {batch} of {self.facts.name}, which has {len(self)}")
        return np.array(self._order[batch * self.size : (batch + 1) * self.size])

    @property
    def size(self) -> int:
        """Number of rows in every batch but a short one at the end."""
        return min(self.facts.batch_size, self.facts.rows)

    @property
    def left_out(self) -> NDArray[np.int64]:
        """Rows that are in no batch: fewer than a batch, and those that lie furthest out."""
        return np.array(self._order[len(self) * self.size :])

    @cached_property
    def vectors(self) -> VectorStore:
        """The surrogate's vectors of all rows."""
        return VectorStore(self.folder / "vectors")

    def __reduce__(self) -> tuple[type["SourceBatches"], tuple[Path, SourceFacts, bool]]:
        return SourceBatches, (self.folder, self.facts, self._short_batch)


@dataclass(frozen=True, slots=True, eq=False)
class BatchTable:
    """The batches of every source, by its name.

    Usage::

        table = BatchTable.open("clusters")
        table.check(records, batch_sizes)
        rows = table["pairs"][0]
    """

    sources: Mapping[str, SourceBatches]
    header: Mapping[str, Any]

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Open what ``embedkit cluster`` has written.

        Raises:
            DataError: there is no whole table in ``folder``.
        """
        folder = Path(folder)
        try:
            header = json.loads((folder / HEADER).read_text(encoding="utf-8"))
        except OSError:
            raise DataError(
                f"{folder}: holds no batches, or not all of them yet: run embedkit cluster "
                f"--output {folder}"
            ) from None
        short = header["settings"]["short_batch"]
        sources = {
            facts["name"]: SourceBatches(source_folder(folder, n), SourceFacts(**facts), short)
            for n, facts in enumerate(header["sources"])
        }
        return cls(sources, header)

    def __getitem__(self, source: str) -> SourceBatches:
        if source not in self.sources:
            raise DataError(
                f"{source}: has no batches here ({', '.join(self.sources)} have): run embedkit "
                "cluster over a recipe that mixes it"
            )
        return self.sources[source]

    @property
    def hash(self) -> str:
        """Hash of the rows, the surrogate, the settings and the batches themselves."""
        return str(self.header["hash"])

    def check(self, records: Sequence[Records], batch_sizes: Sequence[int]) -> None:
        """Verify that the batches were made of these rows, in these sizes.

        Raises:
            DataError: a source is not in the table, or is not what it was.
        """
        for source, size in zip(records, batch_sizes, strict=True):
            facts = self[source.name].facts
            if facts.content != source.table.facts.content:
                raise DataError(
                    f"{source.name}: its rows are not those that the batches were made of: run "
                    "embedkit cluster again, into another --output"
                )
            if facts.batch_size != size:
                raise DataError(
                    f"{source.name}: its batches were made for batch_size = {facts.batch_size}, "
                    f"not {size}: set that in the recipe, or run embedkit cluster again"
                )


def read_order(folder: Path, rows: int) -> NDArray[np.int64]:
    """Return all rows of a source, batch after batch, and then those that are in no batch."""
    path = folder / "rows.i64"
    if not path.is_file() or path.stat().st_size != 8 * rows:
        raise DataError(f"{path}: is not whole: remove it and run embedkit cluster again")
    return np.memmap(path, np.dtype("<i8"), mode="r", shape=(rows,))


def source_folder(folder: Path, number: int) -> Path:
    """Return the folder of a source's files, which has a number since a name may be a path."""
    return folder / "sources" / f"{number:03d}"
