"""Reads rows of jsonl, csv, tsv, txt and parquet files, plain or compressed, one at a time."""

import csv
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from embedkit.errors import DataError

Rows = Iterator[tuple[int, Mapping[str, Any]]]

_UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException)
_PARQUET_ROWS = 1024


def rows(path: Path) -> Rows:
    """Yield each row with its number, from 1: of its last line in text, of the row in parquet."""
    try:
        if path.suffix == ".parquet":
            yield from _parquet(path)
            return
        plain = path.with_suffix("") if path.suffix in _COMPRESSIONS else path
        if plain.suffix not in _TEXT_FORMATS:
            raise DataError(
                f"of unknown format: use {', '.join(_TEXT_FORMATS)} "
                f"(also with {', '.join(_COMPRESSIONS)}) or .parquet"
            )
        opened = _COMPRESSIONS.get(path.suffix)
        with opened(path) if opened else path.open("rb") as stream:
            yield from _TEXT_FORMATS[plain.suffix](_lines(stream))
    except DataError as error:
        raise DataError(f"{path}, {error}") from None
    except _UNREADABLE as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataError(
            f"{path}: unreadable or cut short ({reason}): fetch the file again"
        ) from None


def renamed(row: Mapping[str, Any], rename: Mapping[str, str], where: str) -> Mapping[str, Any]:
    """Return a row under its new column names; ``where`` is for the error if it lacks a column."""
    if absent := rename.keys() - row.keys():
        raise DataError(
            f"{where}: no column {min(absent)!r} (there are {', '.join(map(repr, row))}): correct "
            "rename"
        )
    return {rename.get(column, column): value for column, value in row.items()} if rename else row


def _zstd(path: Path) -> io.BufferedIOBase:
    return io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"))


def _lines(stream: Iterable[bytes]) -> Iterator[tuple[int, str]]:
    for number, raw in enumerate(stream, start=1):
        try:
            yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"line {number}: not UTF-8 at byte {error.start} ({error.reason}): "
                "convert the file to UTF-8"
            ) from None


def _jsonl(lines: Iterator[tuple[int, str]]) -> Rows:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(
                f"line {number}: not valid JSON ({error.msg}: column {error.colno}): "
                "correct the line or take it out"
            ) from None
        if not isinstance(row, dict):
            raise DataError(f"line {number}: expected a JSON object, found {line.strip():.60}")
        yield number, row


def _csv(lines: Iterator[tuple[int, str]]) -> Rows:
    # The reader's own limit, 128 KiB a field, is for the whole process and below a long document.
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader((line for _, line in lines), strict=True)
    try:
        yield from _named((reader.line_num, values) for values in reader if values)
    except csv.Error as error:
        raise DataError(f"line {reader.line_num}: not valid csv: {error}") from None


def _tsv(lines: Iterator[tuple[int, str]]) -> Rows:
    """Read tab-separated values, in which a quote is a character like any other."""
    split = ((number, line.rstrip("\r\n").split("\t")) for number, line in lines)
    return _named((number, values) for number, values in split if values != [""])


def _txt(lines: Iterator[tuple[int, str]]) -> Rows:
    """Read every line that is not blank as the column ``text``."""
    for number, line in lines:
        if text := line.strip():
            yield number, {"text": text}


def _named(numbered: Iterator[tuple[int, list[str]]]) -> Rows:
    """Name the values of each row by those of the first, which are the columns' names."""
    _, header = next(numbered, (1, []))
    for number, values in numbered:
        if len(values) != len(header):
            raise DataError(f"line {number}: {len(values)} values under {len(header)} column names")
        yield number, dict(zip(header, values, strict=True))


def _parquet(path: Path) -> Rows:
    with pq.ParquetFile(path) as file:
        batches = file.iter_batches(batch_size=_PARQUET_ROWS)
        yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)


_COMPRESSIONS: Mapping[str, Callable[[Path], io.BufferedIOBase]] = {
    ".gz": gzip.GzipFile,
    ".xz": lzma.LZMAFile,
    ".zst": _zstd,
}
_TEXT_FORMATS: Mapping[str, Callable[[Iterator[tuple[int, str]]], Rows]] = {
    ".jsonl": _jsonl,
    ".csv": _csv,
    ".tsv": _tsv,
    ".txt": _txt,
}
