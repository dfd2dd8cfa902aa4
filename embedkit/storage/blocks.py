"""Rows of one width on disk, written in blocks that are whole or not there."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.errors import DataError


class BlockFile:
    """A file of its final size; what earlier processes wrote of it, killed or not, stays.

    Several processes may write at a time, each its own blocks. ``<path>`` holds the rows, and
    ``<path>.whole-<block>`` a byte for each block, which is 1 once all of its rows are on disk.

    Args:
        path: the file.
        dtype: of a value.
        rows: of the whole file.
        width: values of a row.
        block: rows of each block but the last.
    """

    def __init__(
        self, path: Path, dtype: np.dtype[Any], *, rows: int, width: int, block: int
    ) -> None:
        self._path, self._dtype = path, dtype
        self._rows, self._width, self._block = rows, width, block
        # Named after the size of a block: under another one its bytes would mean other rows.
        self._marks = path.with_name(f"{path.name}.whole-{block}")
        _resize(self._marks, -(-rows // block))
        size = rows * self._row_bytes
        if len(self.missing()) < -(-rows // block) and (
            not path.is_file() or path.stat().st_size != size
        ):
            raise DataError(f"{path}: is not as it was written: remove {path.parent}, and repeat")
        _resize(path, size)

    def missing(self) -> list[int]:
        """The numbers of the blocks that are still to be written."""
        marks = np.fromfile(self._marks, dtype=np.uint8)
        return [int(block) for block in np.flatnonzero(marks == 0)]

    def done(self) -> int:
        """How many rows the blocks have that are whole."""
        return self._rows - sum(len(self.rows_of(block)) for block in self.missing())

    def rows_of(self, block: int) -> NDArray[np.int64]:
        """The numbers of the rows of a block."""
        return np.arange(block * self._block, min((block + 1) * self._block, self._rows))

    def write(self, block: int, rows: NDArray[Any]) -> None:
        """Write a block, ``(rows, width)``; it counts once it is on disk."""
        assert rows.shape == (len(self.rows_of(block)), self._width)
        data = np.ascontiguousarray(rows, dtype=self._dtype).tobytes()
        _put(self._path, block * self._block * self._row_bytes, data)
        _put(self._marks, block, b"\1")

    @property
    def _row_bytes(self) -> int:
        return self._width * self._dtype.itemsize


def mapped(path: Path, dtype: np.dtype[Any], *, rows: int, width: int) -> NDArray[Any]:
    """The rows of a file, ``(rows, width)``, read-only; only what is read comes into memory."""
    # An empty file cannot be mapped.
    if not rows:
        return np.empty((0, width), dtype)
    return np.memmap(path, dtype, mode="r", shape=(rows, width))


def _resize(path: Path, size: int) -> None:
    path.touch()
    os.truncate(path, size)


def _put(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
