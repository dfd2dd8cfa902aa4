"""Reads rows of jsonl, json, csv, tsv, txt, parquet and arrow files, which may be compressed."""

import csv
import gzip
import io
import json
import lzma
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from embedkit.errors import DataError

Rows = Iterator[tuple[int, Mapping[str, Any]]]


class Cells(dict[str, str]):
    """A row of a csv or tsv file, whose values are text alone: a list in it is spelled as JSON."""


_UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException)
_PARQUET_ROWS = 1024


def rows(path: Path) -> Rows:
    """Yield each row with its number, from 1: of its last line in text, else of the row."""
    suffix, compression = _suffixes(path)
    try:
        if suffix in _BINARY_FORMATS:
            yield from _BINARY_FORMATS[suffix](path)
            return
        if suffix not in _TEXT_FORMATS:
            raise DataError(
                f"of unknown format: use {', '.join(_TEXT_FORMATS)} "
                f"(also with {', '.join(_COMPRESSIONS)}), .parquet or .arrow"
            )
        opened = _COMPRESSIONS.get(compression)
        with opened(path) if opened else path.open("rb") as stream:
            yield from _TEXT_FORMATS[suffix](_lines(stream))
    except DataError as error:
        raise DataError(f"{path}, {error}") from None
    except _UNREADABLE as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataError(
            f"{path}: unreadable or cut short ({reason}): fetch the file again"
        ) from None


def is_readable(path: Path) -> bool:
    """Whether a file holds rows by its suffix; a txt file among others may hold anything."""
    suffix = _suffixes(path)[0]
    return (
        (suffix in _TEXT_FORMATS or suffix in _BINARY_FORMATS)
        and suffix != ".txt"
        and not path.name.startswith(".")
    )


def unit_of(path: Path) -> str:
    """Return what the numbers of a file's rows count."""
    return "line" if _suffixes(path)[0] in _TEXT_FORMATS and not _is_json(path) else "row"


def knows_text_alone(path: Path) -> bool:
    """Whether all values of a file are text: it is csv or tsv."""
    return _suffixes(path)[0] in (".csv", ".tsv")


def _suffixes(path: Path) -> tuple[str, str]:
    """Return the suffix of a file's format, and that of its compression or "", in lower case."""
    name = path.name.lower()
    compression = next((suffix for suffix in _COMPRESSIONS if name.endswith(suffix)), "")
    return Path(name.removesuffix(compression)).suffix, compression


def _is_json(path: Path) -> bool:
    return _suffixes(path)[0] == ".json"


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


def _json(lines: Iterator[tuple[int, str]]) -> Rows:
    """Read an array of objects; what does not begin with a bracket is read as JSON lines."""
    first = next(((number, line) for number, line in lines if line.strip()), (1, ""))
    if not first[1].lstrip().startswith("["):
        yield from _jsonl(chain([first], lines))
        return
    try:
        rows = json.loads("".join(line for _, line in chain([first], lines)))
    except json.JSONDecodeError as error:
        place = f"line {first[0] + error.lineno - 1}"
        raise DataError(f"{place}: not valid JSON ({error.msg}: column {error.colno})") from None
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise DataError(f"row {number}: expected a JSON object, found {row!s:.60}")
        yield number, row


def _csv(lines: Iterator[tuple[int, str]]) -> Rows:
    # The reader's own limit, 128 KiB a field, is for the whole process and below a long document.
    csv.field_size_limit(2**31 - 1)
    first = next(((number, line) for number, line in lines if line.strip()), None)
    if first is None:
        return
    header, delimiter = first[1], ","
    if "," not in header and ";" in header:
        delimiter = ";"
        warnings.warn(
            f"the columns {header.strip()!r:.80} are separated by semicolons, and so are the rows",
            stacklevel=2,
        )
    skipped = first[0] - 1
    reader = csv.reader(
        (line for _, line in chain([first], lines)), strict=True, delimiter=delimiter
    )
    try:
        yield from _named((skipped + reader.line_num, values) for values in reader if values)
    except csv.Error as error:
        raise DataError(f"line {skipped + reader.line_num}: not valid csv: {error}") from None


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
        yield number, Cells(zip(header, values, strict=True))


def _parquet(path: Path) -> Rows:
    with pq.ParquetFile(path) as file:
        batches = file.iter_batches(batch_size=_PARQUET_ROWS)
        yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)


def _arrow(path: Path) -> Rows:
    """Read the stream that ``datasets`` writes, or a file of Arrow's IPC format."""
    with pa.memory_map(str(path)) as source:
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        if is_file:
            file = pa.ipc.open_file(source)
            batches = map(file.get_batch, range(file.num_record_batches))
        else:
            batches = iter(pa.ipc.open_stream(source))
        yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)


_COMPRESSIONS: Mapping[str, Callable[[Path], io.BufferedIOBase]] = {
    ".gz": gzip.GzipFile,
    ".xz": lzma.LZMAFile,
    ".zst": _zstd,
}
_TEXT_FORMATS: Mapping[str, Callable[[Iterator[tuple[int, str]]], Rows]] = {
    ".jsonl": _jsonl,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _tsv,
    ".txt": _txt,
}
_BINARY_FORMATS: Mapping[str, Callable[[Path], Rows]] = {".parquet": _parquet, ".arrow": _arrow}
