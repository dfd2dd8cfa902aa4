"""Reads shards of gzipped JSON lines beside ``counts.json``, as Nomic lays out its pairs.

``offsets.json.gz`` is not read, since rows are read from the first to the last; as published, it
counts characters where a file has bytes.
"""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from embedkit.config import Section
from embedkit.data.sources import files
from embedkit.errors import DataError

COUNTS = "counts.json"

_RANGE = re.compile(r"([^{}]*)\{(\d+)\.\.(\d+)\}([^{}]*)")


def _names(pattern: str) -> list[str]:
    """Return the names that a pattern such as ``a-{08..10}.gz`` stands for, or the name itself."""
    match = _RANGE.fullmatch(pattern)
    if match is None:
        if "{" in pattern or "}" in pattern:
            raise ValueError(
                f"{pattern!r} is no pattern; write it as in: shard-{{000..099}}.jsonl.gz"
            )
        return [pattern]
    before, first, last, after = match.groups()
    numbers = range(int(first), int(last) + 1)
    if not numbers:
        raise ValueError(f"{pattern!r} stands for no file")
    return [f"{before}{number:0{len(first)}}{after}" for number in numbers]


def _pattern(text: str) -> str:
    _names(text)  # raises ValueError where the text is no pattern
    return text


class Shards(Section):
    """A folder of shards."""

    folder: str
    """A path, which may start with ``$EMBEDKIT_DATA``, or be that of a folder in
    ``$EMBEDKIT_HUB``."""
    files: Annotated[str, AfterValidator(_pattern)]
    """Names of shards, as ``shard-{00000..00099}.jsonl.gz``. Those that ``counts.json`` does not
    list, or lists as empty, are left out."""
    rename: dict[str, str] = Field(default_factory=dict)
    """New names of the shards' columns, by which ``[columns]`` speaks of them."""


class ShardsSource(Shards):
    kind: Literal["shards"]


def read(folder: Path, shards: Shards) -> list[tuple[str, files.Rows]]:
    """Return the name and the rows of each shard; rows are read when they are walked.

    Raises:
        DataError: a shard is missing, unreadable, or has not as many rows as ``counts.json`` says.
    """
    counts = _counts(folder)
    names = [name for name in _names(shards.files) if counts.get(name)]
    if not names:
        raise DataError(f"{folder / COUNTS}: lists no rows of {shards.files}: correct files")
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise DataError(
            f"{folder / missing[0]}: no such file, and {COUNTS} lists {counts[missing[0]]} rows "
            f"of it ({len(missing)} of {len(names)} shards are missing): fetch it"
        )
    return [(name, _rows(folder / name, counts[name], shards.rename)) for name in names]


def _rows(path: Path, expected: int, rename: dict[str, str]) -> files.Rows:
    seen = 0
    for number, row in files.rows(path):
        seen += 1
        yield number, files.renamed(row, rename, f"{path}, line {number}")
    if seen != expected:
        raise DataError(f"{path}: {seen} rows, where {COUNTS} says {expected}: fetch both again")


def _counts(folder: Path) -> dict[str, int]:
    """Return the rows of each shard by its name; folders in the bucket are written several ways."""
    path = folder / COUNTS
    try:
        counts: Any = json.loads(path.read_text(encoding="utf-8"))
        counts = counts.get("count_per_file", counts)
        return {name.rpartition("/")[2]: int(rows) for name, rows in counts.items()}
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}: fetch it with its shards") from None
    except (ValueError, TypeError, AttributeError):
        raise DataError(f"{path}: is no table of shards and their rows: fetch it again") from None
