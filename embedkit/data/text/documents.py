"""Turns rows of any shape into documents: picks and joins columns, filters, deduplicates."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from embedkit.data import concepts
from embedkit.data.manifests.columns import ColumnPath, RowFilter
from embedkit.data.manifests.text_manifest import TextDescription
from embedkit.data.sources.distinct import distinct
from embedkit.data.sources.open_source import RowStream
from embedkit.errors import DataError


class Document(NamedTuple):
    text: str
    concept: str | None
    """What it is held out with: what its row is about, or the text itself."""


def documents(parts: Iterable[RowStream], description: TextDescription) -> Iterator[Document]:
    """Yield the documents of all parts in order; an error names the part and the row in it."""
    found = _read(parts, description)
    return distinct(found, lambda each: each.text) if description.deduplicate else found


def is_held_out(document: Document, description: TextDescription) -> bool:
    """Whether training must not see the document."""
    held_out = description.held_out
    return held_out is not None and concepts.is_held_out(document.concept, held_out.share)


def _read(parts: Iterable[RowStream], description: TextDescription) -> Iterator[Document]:
    keep = RowFilter(description.filter) if description.filter else None
    texts = [ColumnPath(path) for path in description.columns.text]
    concept = description.columns.concept and ColumnPath(description.columns.concept)
    for part in parts:
        for number, row in part.rows:
            try:
                if keep is not None and not keep(row):
                    continue
                text = "\n".join(piece for path in texts for piece in _pieces(path, row))
                if text:
                    yield Document(text, _concept(concept, row) if concept else text)
                elif not description.drop_empty:
                    named = ", ".join(path.text for path in texts)
                    raise DataError(f"{named} is empty: fill it in, or set drop_empty = true")
            except DataError as error:
                raise DataError(f"{part.name}, {part.unit} {number}: {error}") from None


def _pieces(path: ColumnPath, row: Mapping[str, Any]) -> Iterator[str]:
    """The texts that the path leads to; blank ones are left out."""
    values = [path(row)]
    while values:
        value = values.pop(0)
        if isinstance(value, list):
            values[:0] = value
        elif isinstance(value, str):
            if value.strip():
                yield _encodable(path, value)
        elif value is not None:
            raise DataError(
                f"{path.text} is {value!r:.60}, not text: correct [columns] or the data"
            )


def _encodable(path: ColumnPath, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{path.text} is not valid Unicode ({error.reason}): clean the data"
        ) from None
    return text


def _concept(path: ColumnPath, row: Mapping[str, Any]) -> str | None:
    value = path(row)
    if value is None or isinstance(value, str | int):
        return None if value is None else str(value)
    raise DataError(f"{path.text} is {value!r:.60}, neither text nor a whole number")
