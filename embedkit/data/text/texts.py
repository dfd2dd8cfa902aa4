"""Texts for pretraining: documents of one source, read from the first to the last."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack

import pyarrow as pa
import pyarrow.parquet as pq

from embedkit.config import expand, validated
from embedkit.data.manifests.manifest import File, FilesSource, Source
from embedkit.data.manifests.text_manifest import (
    TextColumns,
    TextDescription,
    TextHeldOut,
    TextManifest,
    load_text_manifest,
)
from embedkit.data.sources import open_source
from embedkit.data.sources.open_source import OpenedSource, RowStream
from embedkit.data.text.documents import Document, documents, is_held_out
from embedkit.errors import DataError
from embedkit.storage import cache

_KIND = "texts"
_SCHEMA = pa.schema([("text", pa.large_string()), ("concept", pa.large_string())])
_BLOCK = 2**22
"""Characters of a row group."""


class TextOptions(TypedDict, total=False):
    """How rows become documents; every key as in a manifest."""

    columns: TextColumns | Mapping[str, str | Sequence[str]]
    filter: str | None
    drop_empty: bool
    deduplicate: bool
    license: str
    held_out: TextHeldOut | Mapping[str, float] | None


class Texts:
    """Documents of one source: a stream, which may be longer than memory.

    Usage::

        texts = Texts.from_file("articles.jsonl", columns={"text": ["title", "body"]})
        embedkit.pretrain(recipe, sources={"articles": texts})
    """

    def __init__(
        self, name: str, source: Source, description: TextDescription, *, rows: int | None = None
    ) -> None:
        self.name, self.source, self.description = name, source, description
        self.rows = rows
        """How many documents there should be, where that is known."""

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[str | Mapping[str, Any]],
        *,
        name: str = "texts",
        **options: Unpack[TextOptions],
    ) -> Self:
        """Write ``rows`` to the cache; they may be a generator over more than memory holds.

        A string is a row whose column ``text`` it is.
        """
        if isinstance(rows, str):
            raise DataError(f"{name}: the rows are a single str: pass a list of documents")
        named = ({"text": row} if isinstance(row, str) else row for row in rows)
        return cls._written(name, RowStream("rows", "row", enumerate(named, start=1)), options)

    @classmethod
    def from_file(
        cls, path: str | Path, *, name: str | None = None, **options: Unpack[TextOptions]
    ) -> Self:
        """Read jsonl, csv, tsv, txt (also .gz, .xz, .zst) or parquet; nothing is copied.

        ``$EMBEDKIT_DATA`` is resolved. Of txt, every line is a document.
        """
        path = Path(expand(str(path)))
        if not path.is_file():
            raise DataError(f"{path}: no such file")
        name = name or path.name.partition(".")[0]
        return cls(name, _file(path), validated(TextDescription, options, name))

    @classmethod
    def from_dataset(
        cls, dataset: Any, *, name: str = "dataset", **options: Unpack[TextOptions]
    ) -> Self:
        """Write one split of a ``datasets.Dataset`` or ``IterableDataset`` to the cache."""
        if isinstance(dataset, dict):
            raise DataError(f'{name}: choose a split, as in dataset["{next(iter(dataset))}"]')
        return cls._written(name, RowStream("dataset", "row", enumerate(dataset, start=1)), options)

    @classmethod
    def from_manifest(cls, manifest: TextManifest | str | Path) -> Self:
        """The texts of a manifest, given as such, by name or by path."""
        if not isinstance(manifest, TextManifest):
            manifest = load_text_manifest(str(manifest))
        return cls(manifest.name, manifest.source, manifest, rows=manifest.rows)

    @classmethod
    def _written(cls, name: str, part: RowStream, options: TextOptions) -> Self:
        description = validated(TextDescription, options, name)
        found = documents([part], description)
        # Without concepts a document's own text stands for its: it need not be written twice.
        about = description.columns.concept and "concept"
        if not about:
            found = (Document(each.text, None) for each in found)
        with cache.scratch(_KIND) as aside:
            try:
                content = _write(aside / "texts.parquet", found)
            except DataError as error:
                raise DataError(f"{name}: {error}") from None
            folder = aside.with_name(f"rows-{content[:32]}")
            cache.publish(aside, folder)
        written = TextDescription(
            columns=TextColumns(concept=about),
            license=description.license,
            held_out=description.held_out,
        )
        return cls(name, _file(folder / "texts.parquet"), written)

    def renamed(self, name: str) -> Self:
        """The same documents under another name."""
        return type(self)(name, self.source, self.description, rows=self.rows)

    def open(self) -> OpenedSource:
        """Find the source and check its hashes.

        Raises:
            DataError: it is missing, or not what the manifest pins.
        """
        try:
            return open_source.opened(self.source, streaming=True)
        except DataError as error:
            raise DataError(f"{self.name}: {error}") from None

    def documents(self, opened: OpenedSource | None = None) -> Iterator[Document]:
        """Yield all documents, those that are held out among them.

        Raises:
            DataError: a row is not as it should be.
        """
        opened = opened or self.open()
        try:
            yield from documents(opened.parts, self.description)
        except DataError as error:
            raise DataError(f"{self.name}: {error}") from None

    def count(self) -> tuple[int, int]:
        """Read everything: how many documents there are, and how many of them are held out.

        Raises:
            DataError: a row is not as it should be, or their number is not the manifest's.
        """
        opened = self.open()
        documents = held_out = 0
        for document in self.documents(opened):
            documents += 1
            held_out += is_held_out(document, self.description)
        self.expect(documents, opened)
        return documents, held_out

    def expect(self, documents: int, opened: OpenedSource) -> None:
        """Compare how many documents there are with how many the manifest was written for.

        Raises:
            DataError: they differ.
        """
        if opened.pinned and self.rows not in (None, documents):
            raise DataError(
                f"{self.name}: {documents} documents, expected {self.rows}: correct rows in the "
                "manifest if the new number is meant"
            )


def _file(path: Path) -> FilesSource:
    return FilesSource(kind="files", files=(File(path=str(path)),))


def _write(path: Path, found: Iterable[Document]) -> str:
    """Write documents as parquet; a hash of them all, in order."""
    digest = hashlib.sha256()
    block: list[Document] = []
    size = 0
    with pq.ParquetWriter(path, _SCHEMA, compression="zstd") as writer:
        for document in found:
            block.append(document)
            size += len(document.text)
            for part in (document.text, repr(document.concept)):
                digest.update(hashlib.sha256(part.encode()).digest())
            if size >= _BLOCK:
                writer.write_batch(_batch(block))
                block, size = [], 0
        writer.write_batch(_batch(block))
    return digest.hexdigest()


def _batch(block: list[Document]) -> pa.RecordBatch:
    columns = [[getattr(each, name) for each in block] for name in _SCHEMA.names]
    arrays = [pa.array(values, pa.large_string()) for values in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
