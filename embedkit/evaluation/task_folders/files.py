"""Reads and checks rows of task folders; an error names the file, the line and the remedy."""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from embedkit.data.sources.files import rows
from embedkit.errors import DataError

Check = Callable[[Any], Any]
"""Returns the value of a key as a task needs it, or raises ``ValueError`` with the mistake."""


class Row(dict[str, Any]):
    """The values of a line of a file, by key."""

    def __init__(self, path: Path, line: int) -> None:
        super().__init__()
        self.path, self.line = path, line

    def error(self, message: str) -> DataError:
        return DataError(f"{self.path}, line {self.line}: {message}")


def read_rows(path: Path, checks: Mapping[str, Check]) -> Iterator[Row]:
    """Yield the rows of a .jsonl or .tsv file, each with the keys of ``checks`` alone.

    Raises:
        DataError: the file is missing, broken or empty, or a key is missing or fails its check.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    row = None
    for line, found in rows(path):
        row = Row(path, line)
        for key, check in checks.items():
            if key not in found and check is not optional_string:
                holder = "the header" if path.suffix == ".tsv" else "the line"
                present = ", ".join(found) or "nothing"
                raise row.error(f"{key} is missing; {holder} holds {present}")
            try:
                row[key] = check(found.get(key))
            except ValueError as error:
                raise row.error(f"{key} {error}") from None
        yield row
    if row is None:
        raise DataError(f"{path}: the file has no rows")


def string(value: Any) -> str:
    """Check a text that may be empty."""
    return _must(isinstance(value, str), "be a string", value)


def optional_string(value: Any) -> str:
    return string(value or "")


def text(value: Any) -> str:
    if not string(value).strip():
        raise ValueError("is empty: fill it or drop the line")
    return str(value)


def texts(value: Any) -> list[str]:
    for item in _items(value):
        _must(isinstance(item, str) and item.strip(), "hold non-empty strings", item)
    return list(value)


def number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    _must(is_number, "be a number", value)
    return float(_must(math.isfinite(value), "be finite", value))


def numbers(value: Any) -> list[float]:
    return [number(item) for item in _items(value)]


def label(value: Any) -> str | int:
    fits = isinstance(value, str | int) and not isinstance(value, bool) and value != ""
    return _must(fits, "be a string or a whole number", value)


def binary_label(value: Any) -> int:
    return int(_must(value in (0, 1), "be 0 or 1", value))


def relevance(value: str) -> int:
    try:
        whole = float(value).is_integer()
    except ValueError:
        whole = False
    return int(float(_must(whole, "be a whole number", value)))


def identifier(value: Any) -> str:
    # The qrels are text, so an id written as a number is compared as text too.
    return str(label(value))


def _items(value: Any) -> list[Any]:
    return _must(isinstance(value, list) and value, "be a list that holds something", value)


def _must(fits: object, wanted: str, value: Any) -> Any:
    if not fits:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        raise ValueError(f"must {wanted} (got {shown})")
    return value
