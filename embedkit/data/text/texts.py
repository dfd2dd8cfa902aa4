"""Opens texts for pretraining: documents of one source, read from the first to the last."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Self, Unpack

import pyarrow as pa
import pyarrow.parquet as pq

from embedkit.config import validated
from embedkit.data.concepts import is_held_out
from embedkit.data.manifests.columns import ColumnPath, RowFilter, TextColumns
from embedkit.data.manifests.manifest import (
    Options,
    TextDescription,
    TextManifest,
    load_text_manifest,
)
from embedkit.data.manifests.sources import File, FilesSource
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
    held_out: bool
    """Whether training must not see the document."""


class Texts(RowSource):
    """Documents of one source: a stream, which may be longer than memory. No file is copied.

    Usage::

        texts = Texts.from_file("articles.jsonl", columns={"text": ["title", "body"]})
        embedkit.pretrain(recipe, sources={"articles": texts})
    """

    def __init__(self, manifest: TextManifest) -> None:
        self.name, self.manifest = manifest.name, manifest

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
        return cls(manifest)

    @classmethod
    def _from_path(cls, name: str, path: Path, options: Options) -> Self:
        """Read the file itself each time: nothing is copied."""
        return cls(_manifest(name, path, options))

    @classmethod
    def _from_stream(cls, name: str, stream: RowStream, options: Options) -> Self:
        with cache.scratch("texts") as aside:
            path = aside / "texts.parquet"
            given = _manifest(name, path, options)
            # Where a document's own text stands for its concept, it need not be written twice.
            concept = given.columns.concept and "concept"
            with errors_named(name):
                content = _write(path, _documents([stream], given), keep_concepts=bool(concept))
            folder = aside.with_name(f"rows-{content[:32]}")
            cache.publish(aside, folder)
        source = _manifest(name, folder / path.name, {}).source
        kept = given.model_dump(include={"name", "license", "held_out"})
        return cls(TextManifest(**kept, source=source, columns=TextColumns(concept=concept)))

    def renamed(self, name: str) -> Self:
        """Return the same documents under another name."""
        return type(self)(self.manifest.model_copy(update={"name": name}))

    def open(self) -> OpenedSource:
        """Find the source and check its hashes.

        Raises:
            DataError: it is missing, or not what the manifest pins.
        """
        with errors_named(self.name):
            return open_source.opened(self.manifest.source, streaming=True)

    def documents(self, opened: OpenedSource | None = None) -> Iterator[Document]:
        """Yield all documents, those that are held out among them.

        Raises:
            DataError: a row is not as it should be.
        """
        opened = opened or self.open()
        with errors_named(self.name):
            yield from _documents(opened.streams, self.manifest)

    def count(self) -> tuple[int, int]:
        """Read everything; return how many documents there are, and how many are held out.

        Raises:
            DataError: a row is not as it should be, or their number is not the manifest's.
        """
        opened = self.open()
        sides = Counter(document.held_out for document in self.documents(opened))
        opened.expect(self.name, "documents", sides.total(), self.manifest.rows)
        return sides.total(), sides[True]


def _manifest(name: str, path: Path, options: Options) -> TextManifest:
    """Return the manifest of a single file."""
    description = validated(TextDescription, options, name)
    source = FilesSource(kind="files", files=(File(path=str(path)),))
    return TextManifest(name=name, source=source, **dict(description))


def _documents(streams: Iterable[RowStream], manifest: TextManifest) -> Iterator[Document]:
    """Yield the documents of all streams in order; an error names the stream and the row in it."""
    keep = RowFilter(manifest.filter) if manifest.filter else None
    paths = [ColumnPath(path) for path in manifest.columns.text]
    concept = manifest.columns.concept and ColumnPath(manifest.columns.concept)
    share = manifest.held_out.share if manifest.held_out else None

    def make(row: Row) -> Iterator[Document]:
        if keep and not keep(row):
            return
        if text := "\n".join(part for path in paths for part in path.texts_in(row) if part):
            about = concept.mark_in(row, "[columns]") if concept else text
            yield Document(text, about, is_held_out(about, share))
        elif not manifest.drop_empty:
            names = ", ".join(path.text for path in paths)
            raise DataError(f"{names} is empty: fill it in, or set drop_empty = true")

    read = convert(streams, make)
    return distinct(read, lambda document: document.text) if manifest.deduplicate else read


def _write(path: Path, documents: Iterable[Document], *, keep_concepts: bool) -> str:
    """Write documents as parquet; return a hash of them all, in order."""
    digest = hashlib.sha256()
    with pq.ParquetWriter(path, _SCHEMA, compression="zstd") as writer:
        for block in blocks_of(documents, lambda document: len(document.text), _CHARACTERS):
            rows = [(row.text, row.concept if keep_concepts else None) for row in block]
            for text, concept in rows:
                for part in (text, repr(concept)):
                    digest.update(hashlib.sha256(part.encode()).digest())
            columns = map(list, zip(*rows, strict=True))
            writer.write_table(pa.table([*columns], schema=_SCHEMA))
    return digest.hexdigest()
