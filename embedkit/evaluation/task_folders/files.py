"""Reading the files of task folders: every mistake names the file, the line and the remedy."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedkit.errors import DataError
from embedkit.storage.hashing import sha256_of_file, sha256_of_text

QRELS_HEADER = ["query-id", "corpus-id", "score"]


@dataclass(frozen=True, slots=True)
class Row:
    """One JSON object of a file, which knows where it stands."""

    path: Path
    line: int
    values: Mapping[str, Any]

    def error(self, message: str) -> DataError:
        return DataError(f"{self.path}:{self.line}: {message}")

    def text(self, key: str, *, may_be_empty: bool = False) -> str:
        value = self._value(key)
        if not isinstance(value, str):
            raise self.error(f"{key} must be a string (got {_shown(value)})")
        if not value.strip() and not may_be_empty:
            raise self.error(f"{key} is empty: fill it or drop the line")
        return value

    def texts(self, key: str) -> list[str]:
        values = self._list(key)
        for value in values:
            if not isinstance(value, str) or not value.strip():
                raise self.error(f"{key} must hold non-empty strings (got {_shown(value)})")
        return values

    def number(self, key: str) -> float:
        return self._number(key, self._value(key))

    def numbers(self, key: str) -> list[float]:
        return [self._number(key, value) for value in self._list(key)]

    def label(self, key: str = "label") -> str | int:
        value = self._value(key)
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise self.error(f"{key} must be a string or a whole number (got {_shown(value)})")
        return value

    def identifier(self, key: str = "_id") -> str:
        # The qrels are text, so an id written as a number is compared as text too.
        return str(self.label(key))

    def _value(self, key: str) -> Any:
        if key not in self.values:
            present = ", ".join(self.values) or "nothing"
            raise self.error(f"{key} is missing; the line holds {present}")
        return self.values[key]

    def _list(self, key: str) -> list[Any]:
        values = self._value(key)
        if not isinstance(values, list) or not values:
            raise self.error(f"{key} must be a list that holds something (got {_shown(values)})")
        return values

    def _number(self, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(f"{key} must be a number (got {_shown(value)})")
        if not math.isfinite(value):
            raise self.error(f"{key} must be finite (got {value})")
        return value


def read_rows(path: Path) -> Iterator[Row]:
    """The objects of a JSON-lines file; blank lines are passed over.

    Raises:
        DataError: no such file, not UTF-8, not JSON, not objects, or no line at all.
    """
    found = False
    for line, content in _lines(path):
        try:
            values = json.loads(content)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}:{line}: not valid JSON: {error.msg}") from None
        if not isinstance(values, dict):
            raise DataError(f"{path}:{line}: each line must be a JSON object, like {{...}}")
        found = True
        yield Row(path, line, values)
    if not found:
        raise DataError(f"{path}: the file is empty; it needs a JSON object on each line")


def read_qrels(path: Path) -> Iterator[tuple[Row, str, str, int]]:
    """Each judgement of a BEIR ``qrels.tsv``: where it stands, query, document, relevance.

    Raises:
        DataError: no such file, no header, not three columns, a relevance that is no whole number,
            or no judgement.
    """
    lines = _lines(path)
    _, header = next(lines, (0, ""))
    if header.split("\t") != QRELS_HEADER:
        raise DataError(f"{path}:1: the first line must be the header {'<tab>'.join(QRELS_HEADER)}")
    found = False
    for line, content in lines:
        row = Row(path, line, {})
        columns = content.split("\t")
        if len(columns) != 3:
            raise row.error(f"three columns split by tabs are needed (got {len(columns)})")
        try:
            relevance = float(columns[2])
        except ValueError:
            relevance = math.nan
        if not relevance.is_integer():
            raise row.error(f"score must be a whole number (got {columns[2]!r})")
        found = True
        yield row, columns[0], columns[1], int(relevance)
    if not found:
        raise DataError(f"{path}: no judgement below the header")


def read_object(path: Path) -> dict[str, Any]:
    """A file that holds a single JSON object."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8: {error.reason}; save the file as UTF-8") from None
    if not isinstance(values, dict):
        raise DataError(f"{path}:1: must be a JSON object, like {{...}}")
    return values


def content_hash(paths: Sequence[Path]) -> str:
    """sha256 over the names and the contents of files."""
    return sha256_of_text("".join(f"{path.name} {sha256_of_file(path)}\n" for path in paths))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        # Bytes are decoded line by line, so that a wrong one has a line number.
        with path.open("rb") as file:
            for line, content in enumerate(file, start=1):
                try:
                    decoded = content.decode("utf-8-sig" if line == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise DataError(
                        f"{path}:{line}: not UTF-8: {error.reason}; save the file as UTF-8"
                    ) from None
                if decoded.strip():
                    yield line, decoded.rstrip("\r\n")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
