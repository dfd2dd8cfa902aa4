"""Parses the two small languages of a manifest: column paths and row filters."""

import operator
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from embedkit.errors import DataError

_PATH = re.compile(r"[^.\[\]]+(?:\.[^.\[\]]+|\[-?\d+\]|\[\])*")
_STEP = re.compile(r"([^.\[\]]+)|\[(-?\d*)\]")
_FILTER = re.compile(r"\s*(?P<path>.+?)\s*(?P<operator>==|!=|<=|>=|<|>)\s*(?P<literal>.+?)\s*")
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_EACH = None


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

    @property
    def column(self) -> str:
        """The column that the path starts in, unless one has the whole path as its name."""
        return str(self._steps[0])

    def __call__(self, row: Mapping[str, Any]) -> Any:
        if self.text in row:
            return row[self.text]
        if self.column not in row:
            raise DataError(
                f"no column {self.column!r} (there are {_listed(row)}): "
                "correct [columns], the filter or a join"
            )
        return self._follow(row[self.column], 1)

    def text_in(self, row: Mapping[str, Any]) -> str:
        """Return the text, which is "" if it is null or blank."""
        return self._text(self(row), "is")

    def texts_in(self, row: Mapping[str, Any]) -> list[str]:
        """Return the texts of lists of any depth; one that is null or blank is ""."""
        value = self(row)
        verb = "has" if isinstance(value, list) else "is"
        return [self._text(element, verb) for element in _flat(value)]

    def mark_in(self, row: Mapping[str, Any], remedy: str) -> str | None:
        """Return a text or a whole number as text; an error says ``remedy``."""
        value = self(row)
        if value is None or isinstance(value, str | int):
            return None if value is None else str(value)
        raise DataError(
            f"{self.text} is {value!r:.60}, neither text nor a whole number: correct {remedy}"
        )

    def _text(self, value: Any, verb: str) -> str:
        if value is None:
            return ""
        if not isinstance(value, str):
            raise DataError(
                f"{self.text} {verb} {value!r:.60}, not text: correct [columns] or the data"
            )
        return value if value.strip() else ""

    def _follow(self, value: Any, depth: int) -> Any:
        if value is None or depth == len(self._steps):
            return value
        step = self._steps[depth]
        if isinstance(step, str):
            if not isinstance(value, dict):
                raise DataError(f"{self.text}: expected a table, found {_short(value)}")
            if step not in value:
                raise DataError(f"{self.text}: no field {step!r} (there are {_listed(value)})")
            return self._follow(value[step], depth + 1)
        if not isinstance(value, list):
            raise DataError(f"{self.text}: expected a list, found {_short(value)}")
        if step is _EACH:
            return [self._follow(element, depth + 1) for element in value]
        inside = -len(value) <= step < len(value)
        return self._follow(value[step], depth + 1) if inside else None


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
        if value is None:
            return False
        try:
            if isinstance(value, str) and isinstance(self._literal, int | float):
                value = float(value)
            return self._holds(value, self._literal)
        except (TypeError, ValueError):
            raise DataError(
                f"{_short(value)} cannot be compared in the filter {self.text}"
            ) from None


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
