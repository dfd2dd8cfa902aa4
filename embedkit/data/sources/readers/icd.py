"""Reads the ICD-10-CM tabular list: inclusion terms, titles of their codes, and sibling codes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from pydantic import NonNegativeInt

from embedkit.data.manifests.readers import Reader
from embedkit.data.sources.readers.siblings import negatives_of, others, row_of
from embedkit.errors import DataError


class IcdReader(Reader):
    """Inclusion terms of ICD-10-CM; columns as of OBO, and category and chapter."""

    kind: Literal["icd"]
    siblings: NonNegativeInt = 8
    """The most codes under the same parent that a row gets as hard negatives."""

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield inclusion term -> title of the code, in the file's order, chapter by chapter."""
        chapters = 0
        try:
            for _, element in ElementTree.iterparse(path):
                if element.tag == "chapter":
                    chapters += 1
                    yield from _chapter(element, self.siblings)
                    # A chapter is the most that memory ever holds of the file.
                    element.clear()
        except ElementTree.ParseError as error:
            raise DataError(f"{path}: not whole XML ({error})") from None
        if not chapters:
            raise DataError(f"{path}: no <chapter>: is this the ICD-10-CM tabular list?")


def _chapter(chapter: ElementTree.Element, siblings: int) -> Iterator[dict[str, Any]]:
    # "Certain infectious and parasitic diseases (A00-B99)"
    title = _text(chapter, "desc").rsplit(" (", 1)[0]
    for section in chapter.iter("section"):
        categories = section.findall("diag")
        for category in categories:
            for row in _codes(category, categories, siblings):
                yield {**row, "category": _text(category, "name"), "chapter": title}


def _codes(
    code: ElementTree.Element, family: list[ElementTree.Element], siblings: int
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a code and of all codes below it."""
    name, title = _text(code, "name"), _text(code, "desc")
    # The concepts are categories, such as A00 for the code A00.1.
    near = (
        (_text(other, "desc"), _text(other, "name").split(".", 1)[0])
        for other in others(family, code)
    )
    negatives = negatives_of(title, near, siblings)
    notes = ("".join(note.itertext()) for note in code.findall("inclusionTerm/note"))
    for term in dict.fromkeys(" ".join(note.split()) for note in notes):
        # Some codes list their own title once more.
        if term.casefold() != title.casefold():
            yield row_of(term, title, name, negatives)
    below = code.findall("diag")
    for child in below:
        yield from _codes(child, below, siblings)


def _text(element: ElementTree.Element, tag: str) -> str:
    return " ".join((element.findtext(tag) or "").split())
