"""Folders of shards as Nomic lays them out: gzipped JSON lines, their counts and their offsets."""

import gzip
import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def write_shards(root: Path, place: str, shards: dict[str, list[Row]], *columns: str) -> Path:
    """Fill ``root / place``; ``columns`` are those that a row says may be paired."""
    folder = root / place
    folder.mkdir(parents=True, exist_ok=True)
    counts, offsets = {}, {}
    for name, rows in shards.items():
        lines = [_line({**row, "metadata": _metadata(columns)}) for row in rows]
        (folder / name).write_bytes(gzip.compress("".join(lines).encode()))
        counts[f"{place}/{name}"] = len(rows)
        offsets[f"{place}/{name}"] = _offsets(lines)
    total = {"count_per_file": counts, "total_count": sum(counts.values())}
    (folder / "counts.json").write_text(json.dumps(total))
    (folder / "offsets.json.gz").write_bytes(gzip.compress(json.dumps(offsets).encode()))
    return folder


def _line(row: Row) -> str:
    return f"{json.dumps(row, ensure_ascii=False)}\n"


def _metadata(columns: tuple[str, ...]) -> Row:
    return {"objective": {"self": [], "paired": [list(columns)], "triplet": []}}


def _offsets(lines: list[str]) -> dict[int, tuple[int, int]]:
    ends = [sum(map(len, lines[: place + 1])) for place in range(len(lines))]
    return {place: (end - len(lines[place]), end) for place, end in enumerate(ends)}
