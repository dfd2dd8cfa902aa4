"""Blocks of rows on disk, each verified against its digest before its rows are used."""

import hashlib
import os
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.storage.atomic import written_aside

Keys = NDArray[np.uint64]
"""Shapes: ``(rows, 2)``, the 128 bits of a hash."""

_DIGEST_BYTES = 32
_KEY_BYTES = 16


class BlockFile:
    """A file of rows that several processes may write at a time, each its own blocks.

    ``<path>`` holds the rows, and ``<path>.digests-<block>`` the digest of each block, written
    after its rows. A block that differs from its digest is missing, whether a process was killed
    while it wrote the block or the file was damaged later.

    Args:
        path: the file; it is made when a first block is written.
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
        # Named after the size of a block: under another one a digest would be of other rows.
        self._digests = path.with_name(f"{path.name}.digests-{block}")
        self._verified: set[int] = set()

    def missing(self) -> list[int]:
        """The numbers of the blocks that are still to be written; warns of damaged ones."""
        absent, damaged = self._lacking()
        if damaged:
            warnings.warn(
                f"{self._path}: {len(damaged)} of {-(-self._rows // self._block)} blocks are "
                "damaged, so these are made again",
                stacklevel=2,
            )
        return sorted(absent + damaged)

    def is_whole(self) -> bool:
        """Whether every block is there and as it was written."""
        return not any(self._lacking())

    def done(self) -> int:
        """How many rows the blocks have that are whole."""
        absent, damaged = self._lacking()
        return self._rows - sum(len(self.rows_of(block)) for block in absent + damaged)

    def rows_of(self, block: int) -> NDArray[np.int64]:
        """The numbers of the rows of a block."""
        return np.arange(block * self._block, min((block + 1) * self._block, self._rows))

    def write(self, block: int, rows: NDArray[Any]) -> None:
        """Write a block, ``(rows, width)``; it counts once it is on disk."""
        assert rows.shape == (len(self.rows_of(block)), self._width)
        data = np.ascontiguousarray(rows, dtype=self._dtype).tobytes()
        _put(self._path, self._offset(block), data)
        _put(self._digests, block * _DIGEST_BYTES, _digest_of(block, data))
        self._verified.add(block)

    def _lacking(self) -> tuple[list[int], list[int]]:
        """The blocks without a digest, and those that differ from theirs."""
        absent, damaged = [], []
        for block in range(-(-self._rows // self._block)):
            if block in self._verified:
                continue
            expected = _get(self._digests, block * _DIGEST_BYTES, _DIGEST_BYTES)
            size = len(self.rows_of(block)) * self._row_bytes
            if not any(expected):
                absent.append(block)
            elif _digest_of(block, _get(self._path, self._offset(block), size)) == expected:
                self._verified.add(block)
            else:
                damaged.append(block)
        return absent, damaged

    def _offset(self, block: int) -> int:
        return block * self._block * self._row_bytes

    @property
    def _row_bytes(self) -> int:
        return self._width * self._dtype.itemsize


def mapped(path: Path, dtype: np.dtype[Any], *, rows: int, width: int) -> NDArray[Any]:
    """The rows of a file, ``(rows, width)``, read-only; only what is read comes into memory."""
    # An empty file cannot be mapped.
    if not rows:
        return np.empty((0, width), dtype)
    return np.memmap(path, dtype, mode="r", shape=(rows, width))


class DamagedBlockError(Exception):
    """A block that is not what was written."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: is damaged")
        self.path = path


class KeyedBlock:
    """Vectors under keys in a file of their own, which is written at once and never changed.

    A head holds the number of rows, their width and the digests. Head and keys are verified when
    the block is opened, and the vectors when they are first read.

    Raises:
        DamagedBlockError: the file is not what was written, or cannot be read.
    """

    _SIZES = struct.Struct("<QQ")
    _HEAD_BYTES = 2 * _DIGEST_BYTES + _SIZES.size

    def __init__(self, path: Path) -> None:
        self.path = path
        head = self._read(0, self._HEAD_BYTES)
        own, self._digest = head[:_DIGEST_BYTES], head[_DIGEST_BYTES : 2 * _DIGEST_BYTES]
        rows, self.width = self._SIZES.unpack(head[2 * _DIGEST_BYTES :])
        if self._bytes_on_disk() != self.size(rows, self.width):
            raise DamagedBlockError(path)
        keys = self._read(self._HEAD_BYTES, rows * _KEY_BYTES)
        if _sha256(head[_DIGEST_BYTES:], keys) != own:
            raise DamagedBlockError(path)
        self.keys: Keys = np.frombuffer(keys, np.uint64).reshape(rows, 2)
        self._verified = False

    @classmethod
    def size(cls, rows: int, width: int) -> int:
        """Bytes of a file."""
        return cls._HEAD_BYTES + rows * (_KEY_BYTES + 4 * width)

    @classmethod
    def write(cls, path: Path, keys: Keys, vectors: NDArray[np.float32]) -> None:
        """Write a file that is there whole or not at all, one at a time in a folder.

        Shapes: ``vectors`` ``(rows, width)``.
        """
        data = np.ascontiguousarray(vectors, np.float32).tobytes()
        head = _sha256(data) + cls._SIZES.pack(*vectors.shape)
        # One name for all files of the folder, so that killed processes leave one at most.
        aside = path.with_name(".aside")
        with written_aside(path, aside=aside, durable=True), aside.open("wb") as file:
            for part in (_sha256(head, keys.tobytes()), head, keys.tobytes(), data):
                file.write(part)

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors of some rows. Shapes: ``(len(rows), width)``."""
        size = len(self.keys) * self.width * 4
        data = self._read(self._HEAD_BYTES + len(self.keys) * _KEY_BYTES, size)
        if not self._verified and _sha256(data) != self._digest:
            raise DamagedBlockError(self.path)
        self._verified = True
        return np.frombuffer(data, np.float32).reshape(len(self.keys), self.width)[rows]

    def _bytes_on_disk(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            raise DamagedBlockError(self.path) from None

    def _read(self, offset: int, size: int) -> bytes:
        try:
            data = _get(self.path, offset, size)
        except OSError:
            raise DamagedBlockError(self.path) from None
        if len(data) < size:
            raise DamagedBlockError(self.path)
        return data


def _digest_of(block: int, data: bytes) -> bytes:
    """A digest that no other block of the file has, even one of the same rows."""
    return _sha256(block.to_bytes(8, "little"), data)


def _sha256(*parts: bytes) -> bytes:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part)
    return whole.digest()


def _get(path: Path, offset: int, size: int) -> bytes:
    """Bytes of a file: fewer than ``size`` where it ends, none where there is no file."""
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
