"""Reads the files of task folders; an error names the file, the line and the remedy."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embedkit.errors import DataError

QRELS_HEADER = ["query-id", "corpus-id", "score"]

Check = Callable[[Any], Any]
"""Returns the value of a key as a task needs it, or raises ``ValueError`` with the mistake."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a file."""

    path: Path
    line: int
    values: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    def error(self, message: str) -> DataError:
        return DataError(f"{self.path}:{self.line}: {message}")


def read_rows(path: Path, **checks: Check) -> Iterator[Row]:
    """Yield the lines of a JSON-lines file, each with the keys of ``checks`` alone.

    Raises:
        DataError: no such file, not UTF-8, not JSON, not objects, no line at all, or a key is
            missing or fails its check.
    """
    row = None
    for line, content in _lines(path):
        row = Row(path, line)
        try:
            values = json.loads(content)
        except json.JSONDecodeError as error:
            raise row.error(f"not valid JSON: {error.msg}") from None
        if not isinstance(values, dict):
            raise row.error("each line must be a JSON object, like {...}")
        for key, check in checks.items():
            if key not in values and check is not optional_string:
                present = ", ".join(values) or "nothing"
                raise row.error(f"{key} is missing; the line holds {present}")
            try:
                row.values[key] = check(values.get(key))
            except ValueError as error:
                raise row.error(f"{key} {error}") from None
        yield row
    if row is None:
        raise DataError(f"{path}: the file is empty; it needs a JSON object on each line")


def string(value: Any) -> str:
    """Check a text that may be empty."""
    if not isinstance(value, str):
        raise ValueError(f"must be a string (got {_shown(value)})")
    return value


def optional_string(value: Any) -> str:
    return string(value) if value else ""


def text(value: Any) -> str:
    if not string(value).strip():
        raise ValueError("is empty: fill it or drop the line")
    return str(value)


def texts(value: Any) -> list[str]:
    for item in _items(value):
        if not isinstance(item, str) or not item.strip():
            raise ValueError(f"must hold non-empty strings (got {_shown(item)})")
    return _items(value)


def number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a number (got {_shown(value)})")
    if not math.isfinite(value):
        raise ValueError(f"must be finite (got {value})")
    return float(value)


def numbers(value: Any) -> list[float]:
    return [number(item) for item in _items(value)]


def label(value: Any) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise ValueError(f"must be a string or a whole number (got {_shown(value)})")
    return value


def binary_label(value: Any) -> int:
    if value not in (0, 1):
        raise ValueError(f"must be 0 or 1 (got {value!r})")
    return int(value)


def identifier(value: Any) -> str:
    # The qrels are text, so an id written as a number is compared as text too.
    return str(label(value))


def read_qrels(path: Path) -> Iterator[tuple[Row, str, str, int]]:
    """Yield each judgement of a BEIR ``qrels.tsv``: its row, query, document and relevance.

    Raises:
        DataError: no such file, no header, not three columns, a relevance that is no whole number,
            or no judgement.
    """
    lines = _lines(path)
    _, header = next(lines, (0, ""))
    if header.split("\t") != QRELS_HEADER:
        raise DataError(f"{path}:1: the first line must be the header {'<tab>'.join(QRELS_HEADER)}")
    row = None
    for line, content in lines:
        row, columns = Row(path, line), content.split("\t")
        if len(columns) != 3:
            raise row.error(f"three columns split by tabs are needed (got {len(columns)})")
        try:
            relevance = float(columns[2])
        except ValueError:
            relevance = math.nan
        if not relevance.is_integer():
            raise row.error(f"score must be a whole number (got {columns[2]!r})")
        yield row, columns[0], columns[1], int(relevance)
    if row is None:
        raise DataError(f"{path}: no judgement below the header")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers."""
    try:
        with path.open("rb") as file:
            for line, content in enumerate(file, start=1):
                decoded = content.decode("utf-8-sig" if line == 1 else "utf-8")
                if decoded.strip():
                    yield line, decoded.rstrip("\r\n")
    except UnicodeDecodeError as error:
        mistake = f"{path}:{line}: not UTF-8: {error.reason}; save the file as UTF-8"
        raise DataError(mistake) from None
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"must be a list that holds something (got {_shown(value)})")
    return value


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
