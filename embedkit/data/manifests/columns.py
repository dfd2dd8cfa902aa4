"""Columns of rows: paths to their values, filters on them, and the parts that they play."""

import json
import operator
import re
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from embedkit.config import Section
from embedkit.data.sources.files import Cells
from embedkit.errors import DataError

_PATH = re.compile(r"[^.\[\]]+(?:\.[^.\[\]]+|\[-?\d+\]|\[\])*")
_STEP = re.compile(r"([^.\[\]]+)|\[(-?\d*)\]")
_EACH = None
_FILTER = re.compile(r"\s*(?P<path>.+?)\s*(?P<operator>==|!=|<=|>=|<|>)\s*(?P<literal>.+?)\s*")
_OPERATORS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_PYTHON_LIST = re.compile(r"\[\s*'.*'\s*\]\s*", re.DOTALL)


class ColumnPath:
    """Path to a value in a row: ``a.b`` a field, ``a[0]`` an element, ``a[].b`` all elements'.

    A column whose name is the whole path wins over its parts. What is not there in a list, or below
    a null, is ``None``.
    """

    def __init__(self, text: str) -> None:
        if not _PATH.fullmatch(text):
            raise ValueError(f"{text!r} is no column path; write name, a.b, a[0] or a[].b")
        self.text = text
        self._steps = [
            name or (int(index) if index else _EACH) for name, index in _STEP.findall(text)
        ]
        self.column = str(self._steps[0])
        """The column that the path starts in, unless one has the whole path as its name."""

    def __call__(self, row: Mapping[str, Any]) -> Any:
        if self.text in row:
            return row[self.text]
        if self.column not in row:
            raise DataError(
                f"no column {self.column!r} (there are {_listed(row)}): "
                "correct [columns], the filter or a join"
            )
        value = row[self.column]
        if len(self._steps) > 1 and not isinstance(self._steps[1], str):
            spelled = list_in(row, value)
            value = value if spelled is None else spelled
        return self._follow(value, 1)

    def text_in(self, row: Mapping[str, Any]) -> str:
        """Return the text, which is "" if it is null or blank."""
        return self._text(self(row))

    def texts_in(self, row: Mapping[str, Any]) -> list[str]:
        """Return the texts of lists of any depth; one that is null or blank is ""."""
        value = self(row)
        spelled = list_in(row, value)
        return [self._text(element) for element in _flat(value if spelled is None else spelled)]

    def values_in(self, row: Mapping[str, Any]) -> list[Any]:
        """Return the values of lists of any depth, or the one value."""
        return list(_flat(self(row)))

    def mark_in(self, row: Mapping[str, Any], remedy: str) -> str | None:
        """Return a text or a whole number as text; an error says ``remedy``."""
        value = self(row)
        if isinstance(value, str | int | None):
            return None if value is None else self._encodable(str(value))
        raise DataError(
            f"{self.text} is {value!r:.60}, neither text nor a whole number: correct {remedy}"
        )

    def _text(self, value: Any) -> str:
        if not isinstance(value, str | None):
            raise DataError(
                f"{self.text} holds {value!r:.60}, not text: correct [columns] or the data"
            )
        return self._encodable(value) if value and value.strip() else ""

    def _encodable(self, text: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{self.text} is not valid Unicode ({error.reason}): clean the data"
            ) from None
        return text

    def _follow(self, value: Any, depth: int) -> Any:
        if value is None or depth == len(self._steps):
            return value
        step = self._steps[depth]
        kind, name = (dict, "table") if isinstance(step, str) else (list, "list")
        if not isinstance(value, kind):
            raise DataError(f"{self.text}: expected a {name}, found {_short(value)}")
        if step is _EACH:
            return [self._follow(element, depth + 1) for element in value]
        if isinstance(step, str) and step not in value:
            raise DataError(f"{self.text}: no field {step!r} (there are {_listed(value)})")
        outside = isinstance(step, int) and not -len(value) <= step < len(value)
        return None if outside else self._follow(value[step], depth + 1)


class RowFilter:
    """Keeps the rows in which ``<column path> <operator> <literal>`` holds; nulls never pass.

    The literal is written as in TOML. Text is compared with a number as the number it spells, since
    csv and tsv know text alone.
    """

    def __init__(self, text: str) -> None:
        match = _FILTER.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is no filter; write it as in: score > 4")
        self.text = text
        self.path = ColumnPath(match["path"])
        self._holds = _OPERATORS[match["operator"]]
        try:
            self._literal = tomllib.loads(f"value = {match['literal']}")["value"]
        except tomllib.TOMLDecodeError:
            raise ValueError(f'{text!r}: write text in quotes, as in: split == "train"') from None

    def __call__(self, row: Mapping[str, Any]) -> bool:
        value = self.path(row)
        try:
            if isinstance(value, str) and isinstance(self._literal, int | float):
                value = float(value)
            return value is not None and bool(self._holds(value, self._literal))
        except (TypeError, ValueError):
            raise DataError(
                f"{_short(value)} cannot be compared in the filter {self.text}"
            ) from None


def _tuple(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return (value,) if isinstance(value, str) else value


_OneOrMore = BeforeValidator(_tuple, json_schema_input_type=str | list[str])
Names = Annotated[tuple[str, ...], _OneOrMore]
PathText = Annotated[str, AfterValidator(lambda text: ColumnPath(text).text)]
PathTexts = Annotated[tuple[PathText, ...], _OneOrMore]
SomePathTexts = Annotated[PathTexts, Field(min_length=1)]
FilterText = Annotated[str, AfterValidator(lambda text: RowFilter(text).text)]


class TextColumns(Section):
    """Paths to the values of a row that make its text: ``a``, ``a.b``, ``a[0]``, ``a[].b``."""

    text: SomePathTexts = ("text",)
    """One or several paths to the text. Several texts are joined, each on a line of its own; empty
    ones are left out."""
    concept: PathText | None = None
    """Path to the concept that the row is about. Concepts are held out whole."""


class Columns(Section):
    """Paths to the values that play each part in a pair: ``a``, ``a.b``, ``a[0]``, ``a[].b``.

    For a part that is not named here, the columns that are called like it are taken, by the rules
    of ``embedkit.data.pairs.recognition``.
    """

    query: SomePathTexts = ("query",)
    """One or several paths to the query. Several texts are joined by a space; empty ones are left
    out."""
    positive: SomePathTexts = ("positive",)
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
    scores: PathTexts = ()
    """One or several paths to a teacher's scores of the row's documents: numbers, or lists of
    them, of the positive first and then of each negative, for ``objective.kind = "distill"``."""
    score: PathText | None = None
    """Path to a number that says how well query and positive match. It is never recognised by its
    name, since only a loss that goes by scores may train on it."""

    @model_validator(mode="after")
    def _named_negatives(self) -> Self:
        if "negatives" in self.model_fields_set and not self.negatives:
            raise ValueError(
                'negatives names no column: leave it out, or for none set ignore = ["negatives"]'
            )
        return self

    def paths(self) -> dict[str, tuple[str, ...]]:
        """Return the paths of every part that a column plays."""
        return {role: _tuple(paths) for role, paths in self if paths}


def list_in(row: Mapping[str, Any], value: Any) -> list[Any] | None:
    """Return a value that is a list, or the list that a cell of csv or tsv spells in JSON.

    Raises:
        DataError: a cell spells its list as Python does, whose pieces cannot be told apart safely.
    """
    if isinstance(value, list):
        return value
    if not isinstance(row, Cells) or not isinstance(value, str) or not value.startswith("["):
        return None
    if _PYTHON_LIST.fullmatch(value):
        raise DataError(f"{_short(value)} is a list as Python prints it: write it as JSON")
    with suppress(json.JSONDecodeError):
        spelled = json.loads(value)
        if isinstance(spelled, list) and all(isinstance(e, str | None) for e in spelled):
            return spelled
    return None


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for element in value:
            yield from _flat(element)
    else:
        yield value


def _short(value: Any) -> str:
    return textwrap.shorten(repr(value), 60, placeholder="...")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
