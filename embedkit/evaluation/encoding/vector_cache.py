"""Vectors of texts kept on disk, so that no text is encoded twice by one model under one prompt."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from pydantic import ByteSize, TypeAdapter, ValidationError

from embedkit.errors import ArgumentError

Keys = NDArray[np.uint64]
"""Shapes: ``(texts, 2)``, the 128 bits of a hash."""

_KEY_BYTES = 16


def keys_of(texts: Sequence[str]) -> Keys:
    """What texts are found by."""
    digests = (
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest()
        for text in texts
    )
    return np.frombuffer(b"".join(digests), dtype=np.uint64).reshape(-1, 2)


def bytes_of(size: str) -> int:
    """Return the ``cache_size`` that people write, such as 20GB or 512MiB, in bytes.

    Raises:
        ArgumentError: it is something else.
    """
    try:
        return int(TypeAdapter(ByteSize).validate_python(size))
    except ValidationError:
        reason = f"write a number and a unit, such as 20GB (got {size!r})"
        raise ArgumentError(("cache_size", reason)) from None


class VectorCache:
    """A folder of vectors, which several processes on one machine may use at once.

    The vectors of one model under one prompt are a pair of files that only grow: ``.vectors`` in
    fp32, and ``.keys``, whose entries are written behind their vectors and make them count. What a
    kill has cut short is therefore not there, and is written over.

    Whole pairs are dropped, the least recently used first, to keep the folder below its size. The
    pair in use stays; once it fills the folder alone, what comes is not kept.

    Args:
        folder: on a local disk.
        max_bytes: of all files together.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._max_bytes = folder, max_bytes
        self._lock = FileLock(folder / ".lock")
        self._indices: dict[str, _Index] = {}

    def find(
        self, identity: str, prompt: str, keys: Keys
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Which of ``keys`` are there, and the vectors of those, in order.

        Shapes: ``(texts,)`` and ``(found, D)``.
        """
        pair = self._pair(identity, prompt)
        with self._lock:
            index = self._index(pair)
            if index is None:
                return np.zeros(len(keys), dtype=np.bool_), np.empty((0, 0), dtype=np.float32)
            os.utime(pair.keys)
            rows = index.rows(keys)
            shape = (index.count, index.width)
            stored = np.memmap(pair.vectors, dtype=np.float32, mode="r", shape=shape)
            return rows >= 0, np.asarray(stored[rows[rows >= 0]])

    def keep(self, identity: str, prompt: str, keys: Keys, vectors: NDArray[np.float32]) -> None:
        """Add vectors, if there is or can be made room. Shapes: ``(texts, D)``."""
        pair = self._pair(identity, prompt)
        width = vectors.shape[1]
        with self._lock:
            header = 0 if pair.keys.exists() else _KEY_BYTES
            if not self._make_room(pair, header + len(keys) * (_KEY_BYTES + 4 * width)):
                return
            if header:
                pair.vectors.write_bytes(b"")
                pair.keys.write_bytes(np.array([width, 0], dtype=np.uint64).tobytes())
            count = pair.keys.stat().st_size // _KEY_BYTES - 1
            _write_at(pair.vectors, count * width * 4, vectors.astype(np.float32, copy=False))
            _write_at(pair.keys, (count + 1) * _KEY_BYTES, keys)

    def _pair(self, identity: str, prompt: str) -> "_Pair":
        name = hashlib.sha256(f"{identity}\n{prompt}".encode()).hexdigest()[:32]
        return _Pair(self._folder / f"{name}.keys", self._folder / f"{name}.vectors")

    def _index(self, pair: "_Pair") -> "_Index | None":
        """What the pair holds, read anew when another process has added or dropped some."""
        try:
            status = pair.keys.stat()
        except FileNotFoundError:
            return None
        state = (status.st_ino, status.st_size)
        known = self._indices.get(pair.keys.name)
        if known is None or known.state != state:
            known = self._indices[pair.keys.name] = _Index.read(pair, state)
        return known

    def _make_room(self, pair: "_Pair", needed: int) -> bool:
        free = self._max_bytes - needed
        sizes = {path: path.stat() for path in self._folder.iterdir() if path.suffix in _SUFFIXES}
        used = sum(status.st_size for status in sizes.values())
        others = [path for path in sizes if path.suffix == ".keys" and path != pair.keys]
        others.sort(key=lambda path: sizes[path].st_mtime_ns)
        while used > free and others:
            oldest = others.pop(0)
            for path in (oldest, oldest.with_suffix(".vectors")):
                used -= sizes[path].st_size if path in sizes else 0
                path.unlink(missing_ok=True)
        return used <= free


_SUFFIXES = (".keys", ".vectors")


@dataclass(frozen=True)
class _Pair:
    keys: Path
    """The width of a vector and a zero, then the keys, each in 16 bytes."""
    vectors: Path


@dataclass(frozen=True)
class _Index:
    """The keys of a pair in order, for a binary search."""

    state: tuple[int, int]
    """The file's inode and size."""
    width: int
    order: NDArray[np.int64]
    ordered: Keys

    @classmethod
    def read(cls, pair: _Pair, state: tuple[int, int]) -> "_Index":
        size = state[1] // _KEY_BYTES
        entries = np.fromfile(pair.keys, dtype=np.uint64, count=2 * size).reshape(-1, 2)
        order = np.argsort(entries[1:, 0], kind="stable")
        return cls(state, int(entries[0, 0]), order, entries[1:][order])

    @property
    def count(self) -> int:
        return len(self.order)

    def rows(self, keys: Keys) -> NDArray[np.int64]:
        """Where the vectors of ``keys`` stand; -1 where there is none. Shapes: ``(texts,)``."""
        if not self.count:
            return np.full(len(keys), -1)
        places = np.searchsorted(self.ordered[:, 0], keys[:, 0]).clip(max=self.count - 1)
        # Two keys that agree in their first half alone count as one that is not there.
        equal = (self.ordered[places] == keys).all(axis=1)
        return np.where(equal, self.order[places], -1)


def _write_at(path: Path, offset: int, values: NDArray[np.generic]) -> None:
    """Put ``values`` at ``offset`` and nothing behind them, on the disk."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(np.ascontiguousarray(values).data)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
