"""Turns rows of any shape into documents: picks and joins columns, filters, deduplicates."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from embedkit.data import concepts
from embedkit.data.manifests.columns import ColumnPath, RowFilter
from embedkit.data.manifests.manifest import TextDescription
from embedkit.data.sources.rows import Row, RowStream, convert
from embedkit.data.sources.streams import distinct
from embedkit.errors import DataError


class Document(NamedTuple):
    text: str
    concept: str | None
    """What the row is about, or the text itself; documents are held out by their concept."""


def documents(streams: Iterable[RowStream], description: TextDescription) -> Iterator[Document]:
    """Yield the documents of all streams in order; an error names the stream and the row in it."""
    keep = RowFilter(description.filter) if description.filter else None
    paths = [ColumnPath(path) for path in description.columns.text]
    concept = description.columns.concept and ColumnPath(description.columns.concept)

    def make(row: Row) -> Iterator[Document]:
        if keep and not keep(row):
            return
        text = "\n".join(part for path in paths for part in _parts(path, row))
        if text:
            yield Document(text, concept.mark_in(row, "[columns]") if concept else text)
        elif not description.drop_empty:
            names = ", ".join(path.text for path in paths)
            raise DataError(f"{names} is empty: fill it in, or set drop_empty = true")

    made = convert(streams, make)
    return distinct(made, lambda document: document.text) if description.deduplicate else made


def is_held_out(document: Document, description: TextDescription) -> bool:
    """Whether training must not see the document."""
    held_out = description.held_out
    return held_out is not None and concepts.is_held_out(document.concept, held_out.share)


def _parts(path: ColumnPath, row: Row) -> list[str]:
    parts = [text for text in path.texts_in(row) if text]
    try:
        "".join(parts).encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{path.text} is not valid Unicode ({error.reason}): clean the data"
        ) from None
    return parts
