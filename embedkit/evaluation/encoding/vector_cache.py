"""Vectors of texts kept on disk, so that one model under one prompt encodes no text twice."""

import hashlib
import os
import warnings
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from embedkit.storage.blocks import DamagedBlockError, KeyedBlock, Keys
from embedkit.storage.hashing import sha256_of_text

FORMAT = 2
"""Number of the format, which is part of every file's name. Files of other formats are not read,
and are deleted when the files in use need room."""
_SUFFIX = ".block"
_SUFFIXES = (_SUFFIX, ".keys", ".vectors")
"""Suffixes of the files that the cache may delete; the last two belong to format 1."""


def keys_of(texts: Sequence[str]) -> Keys:
    """Return the hashes by which texts are found. Shapes: ``(texts, 2)``."""
    digests = (
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        for text in texts
    )
    return np.frombuffer(b"".join(digests), dtype=np.uint64).reshape(-1, 2)


class VectorCache:
    """A folder of vectors on a local disk, which several processes may use at once.

    The vectors of one model under one prompt are a group of files, one for each call of ``keep``.
    A damaged file is deleted with a warning: its texts are not found, and can be kept again.

    To keep the folder below ``max_bytes``, whole groups are deleted, the least recently used first.
    The group in use stays; once it fills the folder alone, no more vectors are kept.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._max_bytes = folder, max_bytes
        self._lock = FileLock(folder / ".lock")
        self._indices = defaultdict[str, _Index](lambda: _Index([]))

    def find(
        self, identity: str, prompt: str, keys: Keys
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return which of ``keys`` are there, and the vectors of those, in order.

        Shapes: ``(texts,)`` and ``(found, D)``.
        """
        group = _group(identity, prompt)
        with self._lock:
            while True:
                try:
                    index = self._index(group)
                    found, vectors = index.find(keys)
                except DamagedBlockError as error:
                    # Another file may hold some of its texts too: look again without it.
                    (path,) = error.args
                    remark = f"{path}: is damaged, so its texts are encoded again"
                    warnings.warn(remark, stacklevel=2)
                    path.unlink(missing_ok=True)
                    continue
                if index.blocks:
                    os.utime(index.blocks[0].path)
                return found, vectors

    def keep(self, identity: str, prompt: str, keys: Keys, vectors: NDArray[np.float32]) -> None:
        """Add vectors, if there is room or room can be made. Shapes: ``(texts, D)``."""
        group = _group(identity, prompt)
        name = hashlib.sha256(keys.tobytes()).hexdigest()[:32]
        with self._lock:
            if self._make_room(group, KeyedBlock.size(*vectors.shape)):
                KeyedBlock.write(self._folder / f"{group}.{name}{_SUFFIX}", keys, vectors)

    def _index(self, group: str) -> "_Index":
        """Return the index of a group, made anew when another process has changed its files."""
        opened = {block.path: block for block in self._indices[group].blocks}
        paths = sorted(self._folder.glob(f"{group}.*{_SUFFIX}"))
        if paths != list(opened):
            blocks = [opened.get(path) or KeyedBlock(path) for path in paths]
            self._indices[group] = _Index(blocks)
        return self._indices[group]

    def _make_room(self, group: str, needed: int) -> bool:
        groups: dict[str, dict[Path, os.stat_result]] = defaultdict(dict)
        for path in self._folder.iterdir():
            if path.suffix in _SUFFIXES:
                groups[path.name.partition(".")[0]][path] = path.stat()
        used = needed + sum(stat.st_size for files in groups.values() for stat in files.values())
        groups.pop(group, None)
        by_age = sorted(groups.values(), key=lambda g: max(stat.st_mtime_ns for stat in g.values()))
        for files in by_age:
            if used <= self._max_bytes:
                break
            for path, stat in files.items():
                path.unlink(missing_ok=True)
                used -= stat.st_size
        return used <= self._max_bytes


def _group(identity: str, prompt: str) -> str:
    """Return the beginning of the names of a group's files."""
    return sha256_of_text(f"{FORMAT}\n{identity}\n{prompt}")[:32]


class _Index:
    """The keys of all blocks of a group in order, for a binary search."""

    def __init__(self, blocks: Sequence[KeyedBlock]) -> None:
        self.blocks = blocks
        keys = np.concatenate([np.empty((0, 2), np.uint64), *(block.keys for block in blocks)])
        self._ends = np.cumsum([len(block.keys) for block in blocks], dtype=np.int64)
        self._order = np.argsort(keys[:, 0], kind="stable")
        self._keys = keys[self._order]

    def find(self, keys: Keys) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return which keys are in a block, and their vectors, as ``VectorCache.find`` does."""
        if not len(self._keys):
            return np.zeros(len(keys), dtype=np.bool_), np.empty((0, 0), np.float32)
        places = np.searchsorted(self._keys[:, 0], keys[:, 0]).clip(max=len(self._keys) - 1)
        # Two keys that agree in their first half alone count as one that is not there.
        found = (self._keys[places] == keys).all(axis=1)
        rows = self._order[places[found]]
        vectors = np.empty((len(rows), self.blocks[0].width), np.float32)
        owners = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(owners):
            owned, block = owners == number, self.blocks[number]
            vectors[owned] = block.take(rows[owned] - (self._ends[number] - len(block.keys)))
        return found, vectors
