"""The readers of formats that a manifest names: embedkit's, and those of other distributions."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, NonNegativeInt, PositiveInt, SerializeAsAny

from embedkit.config import Section
from embedkit.data.sources.readers import docstring, icd, obo
from embedkit.recipe.extensions import Kinds

Row = Mapping[str, Any]


class Reader(Section):
    """A format of files: the table ``reader`` of a source, and the method that reads rows."""

    kind: str

    def read(self, path: Path) -> Iterator[Row]:
        """Yield the rows of a file, in its order.

        Raises:
            DataError: the file is not of this format.
        """
        raise NotImplementedError


class OboReader(Reader):
    """Terms of an OBO ontology; columns query, positive, negatives, negative_concepts, id."""

    kind: Literal["obo"]
    relation: Literal["definition", "synonym", "term"]
    """Pairs of label and definition, or of exact synonym and label; or for ``term`` a row of each
    term that has either, with the columns name, definition, synonyms and id."""
    siblings: NonNegativeInt = 8
    """The most terms under the same parents that a row gets as hard negatives."""

    def read(self, path: Path) -> Iterator[Row]:
        """Yield the terms of an OBO file."""
        return obo.read(path, self.relation, self.siblings)


class IcdReader(Reader):
    """Inclusion terms of ICD-10-CM; columns as of OBO, and category and chapter."""

    kind: Literal["icd"]
    siblings: NonNegativeInt = 8
    """The most codes under the same parent that a row gets as hard negatives."""

    def read(self, path: Path) -> Iterator[Row]:
        """Yield the inclusion terms of the tabular list."""
        return icd.read(path, self.siblings)


class DocstringReader(Reader):
    """First paragraphs of docstrings and their functions; columns as of OBO, and module."""

    kind: Literal["docstring"]
    siblings: NonNegativeInt = 2
    """The most neighbours in the module that a row gets as hard negatives."""
    min_words: PositiveInt = 4
    """Shortest first paragraph; shorter ones say too little to find a function by."""
    max_words: PositiveInt = 150
    """Words of code after which no further line is kept."""

    def read(self, path: Path) -> Iterator[Row]:
        """Yield the functions of one module."""
        return self.read_modules([(path.stem, path)])

    def read_modules(self, modules: Iterable[tuple[str, Path]]) -> Iterator[Row]:
        """Yield the functions of modules, given as name and file."""
        return docstring.read(modules, **self.model_dump(exclude={"kind"}))


READERS = Kinds(
    "embedkit.readers",
    Reader,
    {"obo": OboReader, "icd": IcdReader, "docstring": DocstringReader},
)
"""The formats that ``reader.kind`` chooses among."""

AnyReader = Annotated[SerializeAsAny[Reader], BeforeValidator(READERS.resolve), READERS]
