"""Training pairs by row: memory-mapped, and cached by what they were made from."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np
import pyarrow as pa

from embedkit.config import expand, validated
from embedkit.data.manifests.manifest import (
    Description,
    HubSource,
    Manifest,
    Options,
    Prompts,
    Task,
    load_manifest,
)
from embedkit.data.pairs import row_folder
from embedkit.data.pairs.layout import Layout
from embedkit.data.pairs.row_folder import Split, splits_of, table_path
from embedkit.data.pairs.table import Table
from embedkit.data.sources import files, open_source
from embedkit.data.sources.open_source import OpenedSource, RowStream
from embedkit.errors import DataError
from embedkit.storage import cache
from embedkit.storage.hashing import sha256_of_json

_KIND = "records"


@dataclass(frozen=True, slots=True)
class Record:
    query: str
    positive: str
    negatives: tuple[str, ...] = ()
    label: str | None = None
    score: float | None = None


class Records:
    """Rows of one source, read from disk when asked for. Pickles small, for worker processes.

    Usage::

        records = Records.from_file("pairs.jsonl", columns={"query": "q", "positive": "answer"})
        records[0].query
    """

    def __init__(self, name: str, table: Table, description: Description, layout: Layout) -> None:
        self.name = name
        self.table = table
        self.description = description
        self.layout = layout
        """What each column of the source became."""

    @classmethod
    def from_rows(
        cls, rows: Iterable[Mapping[str, Any]], *, name: str = "rows", **options: Unpack[Options]
    ) -> Self:
        """Write ``rows`` to the cache; they may be a generator over more than memory holds."""
        return cls._from_part(name, RowStream("rows", "row", enumerate(rows, start=1)), options)

    @classmethod
    def from_file(
        cls, path: str | Path, *, name: str | None = None, **options: Unpack[Options]
    ) -> Self:
        """Read jsonl, csv, tsv (also .gz, .xz, .zst) or parquet; ``$EMBEDKIT_DATA`` is resolved."""
        path = Path(expand(str(path)))
        if not path.is_file():
            raise DataError(f"{path}: no such file")
        part = RowStream(path.name, files.unit(path), files.rows(path))
        return cls._from_part(name or path.name.partition(".")[0], part, options)

    @classmethod
    def from_dataset(
        cls, dataset: Any, *, name: str = "dataset", **options: Unpack[Options]
    ) -> Self:
        """Read one split of a ``datasets.Dataset`` or ``IterableDataset``."""
        if isinstance(dataset, dict):
            raise DataError(f'{name}: choose a split, as in dataset["{next(iter(dataset))}"]')
        return cls._from_part(
            name, RowStream("dataset", "row", enumerate(dataset, start=1)), options
        )

    @classmethod
    def from_pandas(cls, frame: Any, *, name: str = "frame", **options: Unpack[Options]) -> Self:
        """Read a ``pandas.DataFrame``; a missing value counts as empty."""
        batches = pa.Table.from_pandas(frame, preserve_index=False).to_batches(1024)
        rows = chain.from_iterable(batch.to_pylist() for batch in batches)
        return cls._from_part(name, RowStream("frame", "row", enumerate(rows, start=1)), options)

    @classmethod
    def _from_part(cls, name: str, part: RowStream, options: Options) -> Self:
        description = validated(Description, options, name)
        with cache.scratch(_KIND) as aside:
            row_folder.write(aside, name, [part], description)
            # Not of the folder that stays: equal rows may be made of other columns.
            layout = Layout.read(aside)
            content = Table(table_path(aside, "train")).facts.content
            folder = aside.with_name(row_folder.key_of_content(content))
            cache.publish(aside, folder)
        layout.tell_unused(name)
        return cls(name, Table(table_path(folder, "train")), description, layout)

    def renamed(self, name: str) -> Self:
        """The same rows under another name."""
        return type(self)(name, self.table, self.description, self.layout)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, row: int) -> Record:
        return self.take([row])[0]

    def take(self, rows: Sequence[int] | np.ndarray) -> list[Record]:
        """The records of ``rows``, in their order.

        Raises:
            IndexError: a row lies outside ``range(len(self))``.
        """
        wanted = [int(row) for row in rows]
        scores = ("score",) if self.has_scores else ()
        taken = self.table.take(wanted, ("query", "positive", "negatives", "label", *scores))
        return [
            Record(query, positive, tuple(negatives), *rest)
            for query, positive, negatives, *rest in taken
        ]

    def texts(self) -> Iterator[str]:
        """Every query, positive and negative, read once from the first row to the last."""
        for query, positive, negatives in self.table.scan(("query", "positive", "negatives")):
            yield query
            yield positive
            yield from negatives

    @cached_property
    def fingerprint(self) -> str:
        """Changes with anything that changes training: the rows, and how they are used."""
        use = {
            "content": self.table.facts.content,
            "prompts": self.prompts.model_dump(),
            "negatives_per_query": self.negatives_per_query,
            "in_batch_negatives": self.in_batch_negatives,
            "batch_size": self.batch_size,
            "max_query_tokens": self.max_query_tokens,
            "max_document_tokens": self.max_document_tokens,
        }
        return sha256_of_json(use)

    @property
    def task(self) -> Task:
        return self.description.task

    @property
    def license(self) -> str:
        return self.description.license

    @property
    def prompts(self) -> Prompts:
        return self.description.prompts

    @property
    def negatives_per_query(self) -> int:
        asked = self.description.negatives_per_query
        return int(self.table.facts.with_negatives > 0) if asked is None else asked

    @property
    def in_batch_negatives(self) -> bool:
        return self.description.in_batch_negatives

    @property
    def batch_size(self) -> int | None:
        return self.description.batch_size

    @property
    def max_query_tokens(self) -> int | None:
        return self.description.max_query_tokens

    @property
    def max_document_tokens(self) -> int | None:
        return self.description.max_document_tokens

    @property
    def has_labels(self) -> bool:
        """Whether any row has a label."""
        return self.table.facts.with_label > 0

    @property
    def has_scores(self) -> bool:
        """Whether every row has a score."""
        return self.description.columns.score is not None


def open_records(manifest: str | Path, split: Split = "train") -> Records:
    """Open the source of a manifest, given by name or path; the first time, write it to the cache.

    Raises:
        DataError: the source is missing, is not what the manifest pins, or has a bad row.
    """
    return open_manifest(load_manifest(str(manifest)), split)


def open_manifest(manifest: Manifest, split: Split = "train") -> Records:
    """Open the source of ``manifest``: its training rows, or those of the held-out concepts."""
    if split == "held_out" and manifest.held_out is None:
        raise DataError(f"{manifest.name}: holds nothing out: give it a [held_out] table")
    try:
        opened = open_source.opened(manifest.source)
    except DataError as error:
        raise DataError(f"{manifest.name}: {error}") from None
    build = partial(row_folder.write, name=manifest.name, parts=opened.parts, description=manifest)
    folder = cache.built(_KIND, row_folder.key_of(manifest, opened), build)
    tables = {each: Table(table_path(folder, each)) for each in splits_of(manifest)}
    layout = Layout.read(folder)
    found = {"rows": sum(map(len, tables.values())), "rows read": layout.rows_read}
    _expect(found, manifest, opened)
    layout.tell_unused(manifest.name)
    return Records(manifest.name, tables[split], manifest, layout)


def _expect(rows: Mapping[str, int], manifest: Manifest, opened: OpenedSource) -> None:
    """Compare how many rows there are with how many the manifest was written for."""
    expected = {"rows": manifest.rows, "rows read": manifest.rows_read}
    for kind, count in rows.items():
        if expected[kind] in (None, count):
            continue
        told = f"{manifest.name}: {count} {kind}, expected {expected[kind]}"
        key = kind.replace(" ", "_")
        if opened.pinned:
            raise DataError(f"{told}: correct {key} in the manifest if the new number is meant")
        if isinstance(manifest.source, HubSource):
            warnings.warn(f"{told}; the manifest pins no revision", stacklevel=3)
