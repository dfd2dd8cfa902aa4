"""Opens texts for pretraining: documents of one source, read from the first to the last."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Self, Unpack

import pyarrow as pa
import pyarrow.parquet as pq

from embedkit.config import validated
from embedkit.data import concepts
from embedkit.data.manifests.columns import ColumnPath, RowFilter, TextColumns
from embedkit.data.manifests.manifest import (
    Options,
    TextDescription,
    TextManifest,
    load_text_manifest,
)
from embedkit.data.manifests.sources import File, FilesSource, Source
from embedkit.data.sources import open_source
from embedkit.data.sources.open_source import OpenedSource
from embedkit.data.sources.rows import Row, RowSource, RowStream, convert, errors_named
from embedkit.data.sources.streams import blocks_of, distinct
from embedkit.errors import DataError
from embedkit.storage import cache

_SCHEMA = pa.schema([("text", pa.large_string()), ("concept", pa.large_string())])
_CHARACTERS = 2**22
"""Characters of a row group."""


class Document(NamedTuple):
    text: str
    concept: str | None
    """Concept by which the document may be held out: the row's own, or the text itself."""


class Texts(RowSource):
    """Documents of one source: a stream, which may be longer than memory. No file is copied.

    Usage::

        texts = Texts.from_file("articles.jsonl", columns={"text": ["title", "body"]})
        embedkit.pretrain(recipe, sources={"articles": texts})
    """

    def __init__(
        self, name: str, source: Source, description: TextDescription, *, rows: int | None = None
    ) -> None:
        self.name, self.source, self.description = name, source, description
        self.rows = rows
        """Expected number of documents, where it is known."""

    @classmethod
    def from_rows(
        cls, rows: Iterable[str | Row], *, name: str = "texts", **options: Unpack[Options]
    ) -> Self:
        """Write ``rows`` to the cache; they may be a generator over more than memory holds.

        A string is a row whose column ``text`` it is.
        """
        if isinstance(rows, str):
            raise DataError(f"{name}: the rows are a single str: pass a list of documents")
        named = ({"text": row} if isinstance(row, str) else row for row in rows)
        return super().from_rows(named, name=name, **options)

    @classmethod
    def from_manifest(cls, manifest: TextManifest | str | Path) -> Self:
        """Read the texts of a manifest, given as such, by name or by path."""
        if not isinstance(manifest, TextManifest):
            manifest = load_text_manifest(str(manifest))
        return cls(manifest.name, manifest.source, manifest, rows=manifest.rows)

    @classmethod
    def _from_path(cls, name: str, path: Path, options: Options) -> Self:
        """Read the file itself each time: nothing is copied."""
        return cls(name, _file(path), validated(TextDescription, options, name))

    @classmethod
    def _from_stream(cls, name: str, stream: RowStream, options: Options) -> Self:
        description = validated(TextDescription, options, name)
        read = _documents([stream], description)
        columns = TextColumns(concept=description.columns.concept and "concept")
        if columns.concept is None:
            # A document's own text stands for its concept: it need not be written twice.
            read = (document._replace(concept=None) for document in read)
        with cache.scratch("texts") as aside, errors_named(name):
            content = _write(aside / "texts.parquet", read)
            folder = aside.with_name(f"rows-{content[:32]}")
            cache.publish(aside, folder)
        kept = description.model_dump(include={"license", "held_out"})
        written = TextDescription(columns=columns, **kept)
        return cls(name, _file(folder / "texts.parquet"), written)

    def renamed(self, name: str) -> Self:
        """Return the same documents under another name."""
        return type(self)(name, self.source, self.description, rows=self.rows)

    def open(self) -> OpenedSource:
        """Find the source and check its hashes.

        Raises:
            DataError: it is missing, or not what the manifest pins.
        """
        with errors_named(self.name):
            return open_source.opened(self.source, streaming=True)

    def documents(self, opened: OpenedSource | None = None) -> Iterator[Document]:
        """Yield all documents, those that are held out among them.

        Raises:
            DataError: a row is not as it should be.
        """
        opened = opened or self.open()
        with errors_named(self.name):
            yield from _documents(opened.streams, self.description)

    def count(self) -> tuple[int, int]:
        """Read everything; return how many documents there are, and how many are held out.

        Raises:
            DataError: a row is not as it should be, or their number is not the manifest's.
        """
        opened = self.open()
        sides = Counter(is_held_out(each, self.description) for each in self.documents(opened))
        opened.expect(self.name, "documents", sides.total(), self.rows)
        return sides.total(), sides[True]


def is_held_out(document: Document, description: TextDescription) -> bool:
    """Whether training must not see the document."""
    share = description.held_out.share if description.held_out else None
    return concepts.is_held_out(document.concept, share)


def _documents(streams: Iterable[RowStream], description: TextDescription) -> Iterator[Document]:
    """Yield the documents of all streams in order; an error names the stream and the row in it."""
    keep = RowFilter(description.filter) if description.filter else None
    paths = [ColumnPath(path) for path in description.columns.text]
    concept = description.columns.concept and ColumnPath(description.columns.concept)

    def make(row: Row) -> Iterator[Document]:
        if keep and not keep(row):
            return
        if text := "\n".join(part for path in paths for part in _parts(path, row)):
            yield Document(text, concept.mark_in(row, "[columns]") if concept else text)
        elif not description.drop_empty:
            names = ", ".join(path.text for path in paths)
            raise DataError(f"{names} is empty: fill it in, or set drop_empty = true")

    read = convert(streams, make)
    return distinct(read, lambda document: document.text) if description.deduplicate else read


def _parts(path: ColumnPath, row: Row) -> list[str]:
    parts = [text for text in path.texts_in(row) if text]
    try:
        "".join(parts).encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{path.text} is not valid Unicode ({error.reason}): clean the data"
        ) from None
    return parts


def _file(path: Path) -> FilesSource:
    return FilesSource(kind="files", files=(File(path=str(path)),))


def _write(path: Path, documents: Iterable[Document]) -> str:
    """Write documents as parquet; return a hash of them all, in order."""
    digest = hashlib.sha256()
    with pq.ParquetWriter(path, _SCHEMA, compression="zstd") as writer:
        for block in blocks_of(documents, lambda document: len(document.text), _CHARACTERS):
            for text, concept in block:
                for part in (text, repr(concept)):
                    digest.update(hashlib.sha256(part.encode()).digest())
            rows = [document._asdict() for document in block]
            writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=_SCHEMA))
    return digest.hexdigest()
