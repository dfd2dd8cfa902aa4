"""Rows on disk in blocks, each verified against its digest before its rows are used."""

import hashlib
import math
import os
import struct
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.storage.atomic import written_aside

Keys = NDArray[np.uint64]
"""Shapes: ``(rows, 2)``, the 128 bits of a hash."""

_DIGEST_BYTES = 32


class BlockFile:
    """A file of rows in blocks, which several processes may write at a time.

    ``<path>`` holds the rows, and ``<path>.digests-<block>`` the SHA-256 of each block, written
    after its rows. A block that differs from its digest counts as missing, whether a process was
    killed while it wrote the block or the file was damaged later. The file is created when a first
    block is written; ``block`` is the number of rows in each block but the last.
    """

    def __init__(
        self, path: Path, dtype: np.dtype[Any], *, rows: int, width: int, block: int
    ) -> None:
        self._path, self._dtype = path, dtype
        self._rows, self._width, self._block = rows, width, block
        # The name holds the block size, since a block of another size has another digest.
        self._digests = path.with_name(f"{path.name}.digests-{block}")
        self._verified: set[int] = set()

    def missing(self) -> list[int]:
        """Return the numbers of the blocks that are still to be written; warn of damaged ones."""
        absent, damaged = self._unusable()
        if damaged:
            warnings.warn(
                f"{self._path}: {len(damaged)} of {-(-self._rows // self._block)} blocks are "
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
        return self._rows - sum(len(self.rows_of(block)) for block in absent + damaged)

    def rows_of(self, block: int) -> NDArray[np.int64]:
        """Return the numbers of the rows of a block."""
        return np.arange(block * self._block, min((block + 1) * self._block, self._rows))

    def write(self, block: int, rows: NDArray[Any]) -> None:
        """Write a block and wait until it is on disk. Shapes: rows ``(rows of block, width)``."""
        assert rows.shape == (len(self.rows_of(block)), self._width)
        data = np.ascontiguousarray(rows, dtype=self._dtype).tobytes()
        _put(self._path, self._offset(block), data)
        _put(self._digests, block * _DIGEST_BYTES, _digest_of(block, data))
        self._verified.add(block)

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
        shape = (self._rows, self._width)
        # An empty file cannot be mapped.
        if not self._rows:
            return np.empty(shape, self._dtype)
        return np.memmap(self._path, self._dtype, mode="r", shape=shape)

    def _unusable(self) -> tuple[list[int], list[int]]:
        """Return the blocks without a digest, and those that differ from theirs."""
        absent, damaged = [], []
        for block in range(-(-self._rows // self._block)):
            if block in self._verified:
                continue
            expected = _get(self._digests, block * _DIGEST_BYTES, _DIGEST_BYTES)
            size = len(self.rows_of(block)) * self._width * self._dtype.itemsize
            if not any(expected):
                absent.append(block)
            elif _digest_of(block, _get(self._path, self._offset(block), size)) == expected:
                self._verified.add(block)
            else:
                damaged.append(block)
        return absent, damaged

    def _offset(self, block: int) -> int:
        return block * self._block * self._width * self._dtype.itemsize


class DamagedBlockError(Exception):
    """The file of this path does not hold what was written to it."""


class KeyedBlock:
    """Vectors under keys, in a file that is written at once and never changed.

    The file holds a digest of head and keys, the head (a digest of the vectors, their number and
    width), the keys and the vectors. Head and keys are verified when the file is opened, and the
    vectors when they are first read.

    Raises:
        DamagedBlockError: the file is not what was written, or cannot be read.
    """

    _SIZES = struct.Struct("<QQ")
    _KEY_BYTES = 16

    def __init__(self, path: Path) -> None:
        self.path, self._verified = path, False
        try:
            with path.open("rb") as file:
                digest, head = file.read(_DIGEST_BYTES), file.read(_DIGEST_BYTES + self._SIZES.size)
                rows, self.width = self._SIZES.unpack(head[_DIGEST_BYTES:])
                # A damaged head may ask for more bytes than the memory holds.
                if path.stat().st_size != self.size(rows, self.width):
                    raise DamagedBlockError(path)
                keys = file.read(rows * self._KEY_BYTES)
        except (OSError, struct.error):
            raise DamagedBlockError(path) from None
        if hashlib.sha256(head + keys).digest() != digest:
            raise DamagedBlockError(path)
        self._digest = head[:_DIGEST_BYTES]
        self.keys: Keys = np.frombuffer(keys, np.uint64).reshape(rows, 2)

    @classmethod
    def size(cls, rows: int, width: int) -> int:
        """Return the number of bytes of a file."""
        return 2 * _DIGEST_BYTES + cls._SIZES.size + rows * (cls._KEY_BYTES + 4 * width)

    @classmethod
    def write(cls, path: Path, keys: Keys, vectors: NDArray[np.float32]) -> None:
        """Write a file that is there whole or not at all; one writer at a time in a folder.

        Shapes: vectors ``(rows, width)``.
        """
        data = np.ascontiguousarray(vectors, np.float32).tobytes()
        head = hashlib.sha256(data).digest() + cls._SIZES.pack(*vectors.shape) + keys.tobytes()
        # All files of a folder share this name, so that killed processes leave at most one.
        aside = path.with_name(".aside")
        with written_aside(path, aside=aside, durable=True), aside.open("wb") as file:
            file.writelines((hashlib.sha256(head).digest(), head, data))

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the vectors of some rows. Shapes: ``(len(rows), width)``."""
        shape = (len(self.keys), self.width)
        try:
            data = _get(self.path, self.size(len(self.keys), 0), 4 * math.prod(shape))
        except OSError:
            raise DamagedBlockError(self.path) from None
        whole = len(data) == 4 * math.prod(shape)
        if not whole or not (self._verified or hashlib.sha256(data).digest() == self._digest):
            raise DamagedBlockError(self.path)
        self._verified = True
        return np.frombuffer(data, np.float32).reshape(shape)[rows]


def _digest_of(block: int, data: bytes) -> bytes:
    """Return a digest that depends on the block's number too, so that blocks cannot be swapped."""
    return hashlib.sha256(block.to_bytes(8, "little") + data).digest()


def _get(path: Path, offset: int, size: int) -> bytes:
    """Return bytes of a file: fewer than ``size`` where it ends, none where there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(size)
    except FileNotFoundError:
        return b""


def _put(path: Path, offset: int, data: bytes) -> None:
    path.touch()
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
