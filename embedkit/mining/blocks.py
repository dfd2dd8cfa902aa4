"""Rows of one width on disk, appended in blocks that are whole or not there."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.errors import DataError


class BlockFile:
    """Appends after the last whole block of an earlier process, killed or not.

    ``<path>`` holds the rows, ``<path>.blocks`` the number of rows of each whole block.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], width: int) -> None:
        self._path, self._dtype, self._width = path, dtype, width
        self._journal = path.with_name(f"{path.name}.blocks")
        self._journal.touch()
        # A line that was being written when the process died has no end.
        os.truncate(self._journal, self._journal.read_bytes().rfind(b"\n") + 1)
        self._rows = sum(map(json.loads, self._journal.read_text().splitlines()))
        path.touch()
        if path.stat().st_size < self._bytes:
            raise DataError(f"{path}: shorter than was written: remove {path.parent}, and repeat")
        os.truncate(path, self._bytes)

    def __len__(self) -> int:
        """Rows of whole blocks."""
        return self._rows

    def append(self, rows: NDArray[Any]) -> None:
        """Write a block; it counts once it is on disk."""
        assert rows.shape[1:] == (self._width,)
        _append(self._path, np.ascontiguousarray(rows, dtype=self._dtype).tobytes())
        _append(self._journal, f"{len(rows)}\n".encode())
        self._rows += len(rows)

    def mapped(self) -> NDArray[Any]:
        """All rows, ``(rows, width)``; only what is read comes into memory."""
        return mapped(self._path, self._dtype, self._width)

    @property
    def _bytes(self) -> int:
        return self._rows * self._width * self._dtype.itemsize


def mapped(path: Path, dtype: np.dtype[Any], width: int) -> NDArray[Any]:
    """The rows of a file, ``(rows, width)``, read-only and memory-mapped."""
    rows = path.stat().st_size // (width * dtype.itemsize)
    # An empty file cannot be mapped.
    if not rows:
        return np.empty((0, width), dtype)
    return np.memmap(path, dtype, mode="r", shape=(rows, width))


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
