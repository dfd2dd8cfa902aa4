"""Streams of rows whose errors name the row, and sources that a program makes of such rows."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

import pyarrow as pa

from embedkit.config import expand
from embedkit.data.manifests.manifest import Options
from embedkit.data.sources import files
from embedkit.errors import DataError

ItemT = TypeVar("ItemT")
Row = Mapping[str, Any]


RowStream = tuple[str, Iterable[tuple[int, Row]]]
"""A name and numbered rows, which can be read once. The name says what is counted, such as
``pairs.jsonl, line``."""


def numbered(name: str, rows: Iterable[Row]) -> RowStream:
    """Count rows from 1."""
    return f"{name}, row", enumerate(rows, start=1)


def stream_of_file(path: Path) -> RowStream:
    """Read a file by the format that its suffix names."""
    return f"{path.name}, {files.unit_of(path)}", files.rows(path)


def convert(
    streams: Iterable[RowStream], make: Callable[[Row], Iterable[ItemT]]
) -> Iterator[ItemT]:
    """Yield what ``make`` returns for each row; a ``DataError`` names the stream and the row."""
    for place, rows in streams:
        for number, row in rows:
            try:
                yield from make(row)
            except DataError as error:
                raise DataError(f"{place} {number}: {error}") from None


@contextmanager
def errors_named(name: str) -> Iterator[None]:
    """Put the name of a source before the message of a ``DataError``."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{name}: {error}") from None


class RowSource(ABC):
    """A source that a program may make of its own rows, a file, a data set or a data frame."""

    @classmethod
    def from_rows(
        cls, rows: Iterable[Row], *, name: str = "rows", **options: Unpack[Options]
    ) -> Self:
        """Write ``rows`` to the cache; they may be a generator over more than memory holds."""
        return cls._from_stream(name, numbered("rows", rows), options)

    @classmethod
    def from_file(
        cls, path: str | Path, *, name: str | None = None, **options: Unpack[Options]
    ) -> Self:
        """Read jsonl, json, csv, tsv, txt (also .gz, .xz, .zst), parquet or arrow.

        ``$EMBEDKIT_DATA`` is resolved. Every line of a txt file is a row whose column is ``text``.
        """
        path = Path(expand(str(path)))
        if not path.is_file():
            raise DataError(f"{path}: no such file")
        return cls._from_path(name or path.name.partition(".")[0], path, options)

    @classmethod
    def from_dataset(
        cls, dataset: Any, *, name: str = "dataset", **options: Unpack[Options]
    ) -> Self:
        """Write one split of a ``datasets.Dataset`` or ``IterableDataset`` to the cache."""
        if isinstance(dataset, dict):
            raise DataError(f'{name}: choose a split, as in dataset["{next(iter(dataset))}"]')
        return cls._from_stream(name, numbered("dataset", dataset), options)

    @classmethod
    def from_pandas(cls, frame: Any, *, name: str = "frame", **options: Unpack[Options]) -> Self:
        """Write a ``pandas.DataFrame`` to the cache; a missing value counts as empty."""
        batches = pa.Table.from_pandas(frame, preserve_index=False).to_batches(1024)
        rows = chain.from_iterable(batch.to_pylist() for batch in batches)
        return cls._from_stream(name, numbered("frame", rows), options)

    @classmethod
    def _from_path(cls, name: str, path: Path, options: Options) -> Self:
        return cls._from_stream(name, stream_of_file(path), options)

    @classmethod
    @abstractmethod
    def _from_stream(cls, name: str, stream: RowStream, options: Options) -> Self: ...
