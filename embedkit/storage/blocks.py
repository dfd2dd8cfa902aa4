"""Rows on disk in blocks, each verified against its digest before its rows are used."""

import hashlib
import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DIGEST_BYTES = 32


class BlockFile:
    """A file of rows in blocks, which several processes may write at a time.

    ``<path>`` holds the rows, and ``<path>.digests-<block>`` the SHA-256 of each block, written
    after its rows. A block that differs from its digest counts as missing, whether a process was
    killed while it wrote the block or the file was damaged later. The file is created when a first
    block is written; ``block`` is the number of rows in each block but the last. Without a number
    of ``rows``, the file has only whole blocks and grows by those that are written; what follows
    the last whole one, when a disk was full, is overwritten.
    """

    def __init__(
        self, path: Path, dtype: np.dtype[Any], *, width: int, block: int, rows: int | None = None
    ) -> None:
        self._path, self._dtype = path, dtype
        self._rows, self._width, self._block = rows, width, block
        # The name holds the block size, since a block of another size has another digest.
        self._digests = path.with_name(f"{path.name}.digests-{block}")
        self._verified: set[int] = set()

    @property
    def rows(self) -> int:
        """Number of rows in all blocks, whether they are written or still to be written."""
        if self._rows is not None:
            return self._rows
        size = self._path.stat().st_size if self._path.is_file() else 0
        return size // self._offset(1) * self._block

    def missing(self) -> list[int]:
        """Return the numbers of the blocks that are still to be written; warn of damaged ones."""
        absent, damaged = self._unusable()
        if damaged:
            warnings.warn(
                f"{self._path}: {len(damaged)} of {-(-self.rows // self._block)} blocks are "
                "damaged, so these are made again",
                stacklevel=2,
            )
        return sorted(absent + damaged)

    def is_whole(self) -> bool:
        """Return whether every block is there and undamaged."""
        return not any(self._unusable())

    def done(self) -> int:
        """Return the number of rows in undamaged blocks."""
        absent, damaged = self._unusable()
        return self.rows - sum(len(self.rows_of(block)) for block in absent + damaged)

    def rows_of(self, block: int) -> NDArray[np.int64]:
        """Return the numbers of the rows of a block."""
        return np.arange(block * self._block, min((block + 1) * self._block, self.rows))

    def write(self, block: int, rows: NDArray[Any]) -> None:
        """Write whole blocks from ``block`` on, and wait until they are on disk.

        Shapes: rows ``(rows of the blocks, width)``.
        """
        assert rows.shape[1:] == (self._width,)
        end = block * self._block + len(rows)
        assert end == self._rows or (len(rows) % self._block == 0 and end <= (self._rows or end))
        data = np.ascontiguousarray(rows, dtype=self._dtype).tobytes()
        step = self._offset(1)
        digests = [
            _digest_of(block + number, data[start : start + step])
            for number, start in enumerate(range(0, len(data), step))
        ]
        _put(self._path, self._offset(block), data)
        _put(self._digests, block * _DIGEST_BYTES, b"".join(digests))
        self._verified.update(range(block, block + len(digests)))

    def forget(self, blocks: Iterable[int]) -> None:
        """Make blocks count as if they had never been written."""
        for block in blocks:
            self._verified.discard(block)
            if any(self._expected_digest(block)):
                _put(self._digests, block * _DIGEST_BYTES, bytes(_DIGEST_BYTES))

    def read(self, block: int) -> NDArray[Any] | None:
        """Return the rows of a block, or ``None`` if it is absent or damaged.

        Shapes: ``(rows of the block, width)``.
        """
        size = len(self.rows_of(block)) * self._width * self._dtype.itemsize
        data = _get(self._path, self._offset(block), size)
        if _digest_of(block, data) != self._expected_digest(block):
            return None
        return np.frombuffer(data, self._dtype).reshape(-1, self._width)

    def fill(
        self,
        blocks: Iterable[int],
        compute: Callable[[NDArray[np.int64]], NDArray[Any]],
        advance: Callable[[int], None],
    ) -> None:
        """Write the rows that ``compute`` returns for the numbers of the rows of each block.

        A block has the same rows after an interruption and on any number of ranks, so that a text
        is always encoded beside the same others and its vector is the same to the last bit.
        """
        for block in blocks:
            numbers = self.rows_of(block)
            self.write(block, compute(numbers))
            advance(len(numbers))

    def mapped(self) -> NDArray[Any]:
        """Return all rows, ``(rows, width)``, memory-mapped and read-only."""
        shape = (self.rows, self._width)
        # An empty file cannot be mapped.
        if not shape[0]:
            return np.empty(shape, self._dtype)
        return np.memmap(self._path, self._dtype, mode="r", shape=shape)

    def _unusable(self) -> tuple[list[int], list[int]]:
        """Return the blocks without a digest, and those that differ from theirs."""
        absent, damaged = [], []
        for block in range(-(-self.rows // self._block)):
            if block in self._verified:
                continue
            if self.read(block) is not None:
                self._verified.add(block)
            elif any(self._expected_digest(block)):
                damaged.append(block)
            else:
                absent.append(block)
        return absent, damaged

    def _expected_digest(self, block: int) -> bytes:
        """Return the digest on disk: zeros or nothing if the block was never written."""
        return _get(self._digests, block * _DIGEST_BYTES, _DIGEST_BYTES)

    def _offset(self, block: int) -> int:
        return block * self._block * self._width * self._dtype.itemsize


def _digest_of(block: int, data: bytes) -> bytes:
    """Return a digest that depends on the block's number too, so that blocks cannot be swapped."""
    return hashlib.sha256(block.to_bytes(8, "little") + data).digest()


def _get(path: Path, offset: int, size: int) -> bytes:
    """Return bytes of a file: fewer than ``size`` where it ends, none where it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(size)
    except OSError:
        return b""


def _put(path: Path, offset: int, data: bytes) -> None:
    path.touch()
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
