"""Describes which parts columns of a row play in a pair or a document, by path and by name."""

import re
from collections.abc import Iterable
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, model_validator

from embedkit.config import Section
from embedkit.data.manifests.columns import ColumnPath

_NEGATIVES = re.compile(r"negatives|negative(?:_\d+)?")


def _tuple(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return (value,) if isinstance(value, str) else value


_OneOrMore = BeforeValidator(_tuple, json_schema_input_type=str | list[str])
Names = Annotated[tuple[str, ...], _OneOrMore]
PathText = Annotated[str, AfterValidator(lambda text: ColumnPath(text).text)]
PathTexts = Annotated[tuple[PathText, ...], _OneOrMore]


class TextColumns(Section):
    """Paths to the values of a row that make its text: ``a``, ``a.b``, ``a[0]``, ``a[].b``."""

    text: PathTexts = ("text",)
    """One or several paths to the text. Several texts are joined, each on a line of its own; empty
    ones are left out."""
    concept: PathText | None = None
    """Path to the concept that the row is about. Concepts are held out whole."""

    @model_validator(mode="after")
    def _some_text(self) -> Self:
        if not self.text:
            raise ValueError("text names no column")
        return self


class Columns(Section):
    """Paths to the values that play each part in a pair: ``a``, ``a.b``, ``a[0]``, ``a[].b``.

    For a part that is not named here, the columns that are called like it are taken.
    """

    query: PathTexts = ("query",)
    """One or several paths to the query. Several texts are joined by a space; empty ones are left
    out."""
    positive: PathTexts = ("positive",)
    """One or several paths to the positive. Several texts are joined as those of ``query``; a
    single path with ``[]`` gives several texts, which make a row each."""
    negatives: PathTexts = ()
    """One or several paths to the hard negatives: texts, or lists of texts of any length."""
    label: PathText | None = None
    """Path to the label. Rows of one label are never negatives of each other."""
    concept: PathText | None = None
    """Path to the concept that the row is about. Concepts are held out whole."""
    negative_concepts: PathTexts = ()
    """Paths to the concepts that ``negatives`` are about, so that none speaks of a held-out
    concept."""
    topic: PathText | None = None
    """Path to the topic that a held-out classification task predicts. Training never sees it."""
    score: PathText | None = None
    """Path to a number that says how well query and positive match. It is never recognised by its
    name, since only a loss that goes by scores may train on it."""

    @model_validator(mode="after")
    def _some_text(self) -> Self:
        if not self.query or not self.positive:
            raise ValueError("query and positive name a column each, or several")
        if "negatives" in self.model_fields_set and not self.negatives:
            raise ValueError(
                'negatives names no column: leave it out, or for none set ignore = ["negatives"]'
            )
        return self

    def paths(self) -> dict[str, tuple[str, ...]]:
        """Return the paths of every part that a column plays."""
        return {role: _tuple(paths) for role, paths in self if paths}

    def with_recognised(self, names: Iterable[str]) -> Self:
        """Return these columns and those of ``names`` that are called like a part not named yet."""
        names = set(names)
        marks = {"label", "concept", "topic"} & names
        recognised: dict[str, Any] = {mark: mark for mark in marks if getattr(self, mark) is None}
        negatives = self.negatives or tuple(sorted(filter(are_negatives, names), key=_order))
        recognised["negatives"] = negatives
        if negatives and not self.negative_concepts and "negative_concepts" in names:
            recognised["negative_concepts"] = ("negative_concepts",)
        return self.model_copy(update=recognised)


def are_negatives(name: str) -> bool:
    """Whether a column of this name is taken for negatives."""
    return _NEGATIVES.fullmatch(name) is not None


def _order(name: str) -> tuple[bool, int]:
    """Sort ``negatives``, ``negative``, ``negative_1``, ``negative_2``, ``negative_10``."""
    return name != "negatives", int(name.rpartition("_")[2]) if "_" in name else -1
