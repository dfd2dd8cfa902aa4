"""Vectors of texts kept on disk, for one model under one prompt to encode the same texts once."""

import errno
import hashlib
import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import DTypeLike, NDArray

from embedkit import distributed
from embedkit.storage.blocks import BlockFile
from embedkit.storage.hashing import sha256_of_text

Keys = NDArray[np.uint64]
"""Shapes: ``(texts, 2)``, the 128 bits of a hash."""

FORMAT = 5
"""Number of the format, which is part of every folder's name. Other formats are not read, and are
deleted when the vectors in use need room."""
_BLOCK = 256
"""Number of texts in a block."""
_KEY_BYTES = 16
_SPARE = 64 * 2**20
"""Bytes that the cache leaves free on its disk, for results and whatever else is written there."""
_SUFFIX = ".texts"
_SUFFIXES = (_SUFFIX, ".block", ".keys", ".vectors")
"""Suffixes of what the cache may delete; all but the first belong to earlier formats."""


def keys_of(texts: Sequence[str]) -> Keys:
    """Return the hashes by which texts are found. Shapes: ``(texts, 2)``."""
    digests = (
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        for text in texts
    )
    return np.frombuffer(b"".join(digests), dtype=np.uint64).reshape(-1, 2)


class VectorCache:
    """A folder of vectors on a local disk, which several processes may use at once.

    The vectors of one model under one prompt are a group, in a folder of its own. They are stored
    in ``dtype``, to which they must be rounded already. Texts of a damaged block are not found,
    with a warning, and can be kept again.

    To stay below ``max_bytes``, whole groups are deleted, the least recently used first. The group
    in use stays; once it fills the cache alone, no more vectors are kept. Nor are they once the
    disk is full or fails, of which a warning tells once for all ranks of torchrun.
    """

    def __init__(self, folder: Path, max_bytes: int, dtype: DTypeLike = np.float32) -> None:
        self._folder, self._max_bytes, self._failed = folder, max_bytes, False
        self._dtype = np.dtype(dtype)
        with self._without_failure():
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(folder / ".lock")
        self._groups: dict[str, _Group] = {}

    def __reduce__(self) -> tuple[type["VectorCache"], tuple[Path, int, DTypeLike]]:
        """Pickle the cache for another rank, which opens the folder itself."""
        return VectorCache, (self._folder, self._max_bytes, self._dtype)

    def find(
        self, identity: str, prompt: str, keys: Keys
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return which of ``keys`` are there, and the vectors of those, in order.

        Shapes: ``(texts,)`` and ``(found, D)``.
        """
        with self._without_failure(), self._lock:
            return self._group(identity, prompt).find(keys)
        return np.zeros(len(keys), dtype=np.bool_), np.empty((0, 0), np.float32)

    def keep(self, identity: str, prompt: str, keys: Keys, vectors: NDArray[np.float32]) -> None:
        """Add vectors, if there is room or room can be made. Shapes: ``(texts, D)``."""
        if self._failed:
            return
        with self._without_failure(), self._lock:
            group = self._group(identity, prompt)
            if self._make_room(group.folder, group.size(*vectors.shape)):
                group.add(keys, vectors)

    @contextmanager
    def _without_failure(self) -> Iterator[None]:
        """Turn an error of the disk into a warning, after which nothing is kept any more."""
        try:
            yield
        except OSError as error:
            if not self._failed:
                remark = f"{self._folder}: {error.strerror}, so vectors are no longer kept"
                # Ranks fail alike, each with a cache of its own.
                if distributed.says_first(remark):
                    warnings.warn(remark, stacklevel=2)
            self._failed = True

    def _group(self, identity: str, prompt: str) -> "_Group":
        name = sha256_of_text(f"{FORMAT}\n{self._dtype}\n{identity}\n{prompt}")[:32]
        folder = self._folder / f"{name}{_SUFFIX}"
        return self._groups.setdefault(name, _Group(folder, self._dtype))

    def _make_room(self, in_use: Path, needed: int) -> bool:
        """Delete what was used longest ago; return whether ``needed`` bytes fit now."""
        paths = [path for path in self._folder.iterdir() if path.suffix in _SUFFIXES]
        sizes = {path: sum(file.stat().st_size for file in _files(path)) for path in paths}
        used = needed + sum(sizes.values())
        free = shutil.disk_usage(self._folder).free - _SPARE
        others = sizes.keys() - {in_use}
        if needed > free + sum(sizes[path] for path in others):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for path in sorted(others, key=lambda path: path.stat().st_mtime_ns):
            if used <= self._max_bytes and needed <= free:
                break
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            used -= sizes[path]
            free += sizes[path]
        return used <= self._max_bytes


def _files(path: Path) -> list[Path]:
    """Return the files of a folder, or the file itself."""
    return list(path.iterdir()) if path.is_dir() else [path]


class _Group:
    """The vectors of one model under one prompt, in blocks of a file of keys and one of vectors.

    Texts that are added begin a new block, whose rows without a text have the key 0.
    """

    def __init__(self, folder: Path, dtype: np.dtype[Any]) -> None:
        self.folder, self._dtype = folder, dtype
        self._key_file = BlockFile(folder / "keys", np.dtype(np.uint64), width=2, block=_BLOCK)
        self._read_at: tuple[int, ...] = ()

    def size(self, texts: int, width: int) -> int:
        """Return how many bytes so many texts take, but for digests."""
        return (texts + -texts % _BLOCK) * (_KEY_BYTES + self._dtype.itemsize * width)

    def find(self, keys: Keys) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return which keys are there, and their vectors, as ``VectorCache.find`` does."""
        while self._key_file.rows:
            os.utime(self.folder)
            if self._read_at != self._state():
                self._read_keys()
            if not len(self._keys):
                break
            places = np.searchsorted(self._keys[:, 0], keys[:, 0]).clip(max=len(self._keys) - 1)
            # Two keys that agree in their first half alone count as one that is not there.
            found = (self._keys[places] == keys).all(axis=1)
            vectors = self._take(self._order[places[found]])
            # If a block was damaged, another may hold some of its texts too: look again.
            if vectors is not None:
                return found, vectors
        return np.zeros(len(keys), dtype=np.bool_), np.empty((0, 0), np.float32)

    def add(self, keys: Keys, vectors: NDArray[np.float32]) -> None:
        """Append texts. Shapes: vectors ``(texts, D)``.

        Keys are written last, so that a killed process leaves vectors that no key leads to.
        """
        self.folder.mkdir(exist_ok=True)
        os.utime(self.folder)
        block, no_texts = self._key_file.rows // _BLOCK, [(0, -len(keys) % _BLOCK), (0, 0)]
        self._vector_file(vectors.shape[1]).write(block, np.pad(vectors, no_texts))
        self._key_file.write(block, np.pad(keys, no_texts))

    def _read_keys(self) -> None:
        """Sort the keys for a binary search."""
        missing, keys = self._key_file.missing(), self._key_file.mapped()
        self._order = np.argsort(keys[:, 0], kind="stable")
        self._keys, self._read_at = keys[self._order], self._state()
        self._drop(missing)

    def _take(self, rows: NDArray[np.int64]) -> NDArray[np.float32] | None:
        """Return the vectors of rows; if a block is damaged, drop its texts and return ``None``."""
        # Without the file of vectors, all blocks of the file that this names count as damaged.
        width = next((int(path.stem) for path in self.folder.glob("*.vectors")), 1)
        file, damaged = self._vector_file(width), []
        vectors = np.empty((len(rows), width), np.float32)
        order = np.argsort(rows)
        blocks, starts = np.unique(rows[order] // _BLOCK, return_index=True)
        for block, places in zip(blocks.tolist(), np.split(order, starts)[1:], strict=True):
            content = file.read(block)
            if content is None:
                damaged.append(block)
            else:
                vectors[places] = content[rows[places] % _BLOCK]
        if not damaged:
            return vectors
        remark = f"{len(damaged)} blocks are damaged, so their texts are encoded again"
        warnings.warn(f"{self.folder}: {remark}", stacklevel=2)
        self._drop(damaged)
        return None

    def _drop(self, blocks: Sequence[int]) -> None:
        """Make the texts of some blocks unknown, here also if the disk is full."""
        kept = ~np.isin(self._order // _BLOCK, blocks)
        self._order, self._keys = self._order[kept], self._keys[kept]
        with suppress(OSError):
            self._key_file.forget(blocks)

    def _vector_file(self, width: int) -> BlockFile:
        path = self.folder / f"{width}.vectors"
        return BlockFile(path, self._dtype, width=width, block=_BLOCK)

    def _state(self) -> tuple[int, ...]:
        """Return numbers that change with the file of keys; none if there is no file."""
        with suppress(FileNotFoundError):
            stat = (self.folder / "keys").stat()
            return stat.st_ino, stat.st_size, stat.st_mtime_ns
        return ()
