"""Vectors of texts kept on disk, so that no text is encoded twice by one model under one prompt."""

import hashlib
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from pydantic import ByteSize, TypeAdapter, ValidationError

from embedkit.errors import ArgumentError
from embedkit.storage.blocks import DamagedBlockError, KeyedBlock, Keys
from embedkit.storage.hashing import sha256_of_text

FORMAT = 2
"""Part of every name: files of another format are not read, and go as those in use need room."""
_SUFFIX = ".block"
_SUFFIXES = (_SUFFIX, ".keys", ".vectors")
"""What the cache may delete; the last two are the files of format 1."""


def keys_of(texts: Sequence[str]) -> Keys:
    """What texts are found by."""
    digests = (
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
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

    The vectors of one model under one prompt are a group of files, one for each call of ``keep``.
    A damaged file is deleted with a warning: what it held is not found, and can be kept again.

    Whole groups are dropped, the least recently used first, to keep the folder below its size. The
    group in use stays; once it fills the folder alone, what comes is not kept.

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
        group = _group(identity, prompt)
        with self._lock:
            while True:
                try:
                    index = self._index(group)
                    rows = index.rows(keys)
                    vectors = index.vectors(rows[rows >= 0])
                except DamagedBlockError as error:
                    # Another file may hold some of its texts too: look again without it.
                    warnings.warn(f"{error}, so its texts are encoded again", stacklevel=2)
                    error.path.unlink(missing_ok=True)
                    continue
                if index.blocks:
                    os.utime(index.blocks[0].path)
                return rows >= 0, vectors

    def keep(self, identity: str, prompt: str, keys: Keys, vectors: NDArray[np.float32]) -> None:
        """Add vectors, if there is or can be made room. Shapes: ``(texts, D)``."""
        group = _group(identity, prompt)
        name = hashlib.sha256(keys.tobytes()).hexdigest()[:32]
        with self._lock:
            if self._make_room(group, KeyedBlock.size(*vectors.shape)):
                KeyedBlock.write(self._folder / f"{group}.{name}{_SUFFIX}", keys, vectors)

    def _index(self, group: str) -> "_Index":
        """What the group holds, read anew when another process has added or dropped some."""
        known = self._indices.get(group)
        opened = {block.path: block for block in known.blocks} if known else {}
        paths = sorted(self._folder.glob(f"{group}.*{_SUFFIX}"))
        if known is None or paths != list(opened):
            blocks = [opened.get(path) or KeyedBlock(path) for path in paths]
            known = self._indices[group] = _Index.over(blocks)
        return known

    def _make_room(self, group: str, needed: int) -> bool:
        free = self._max_bytes - needed
        groups: dict[str, dict[Path, os.stat_result]] = {}
        for path in self._folder.iterdir():
            if path.suffix in _SUFFIXES:
                groups.setdefault(path.name.partition(".")[0], {})[path] = path.stat()
        used = sum(status.st_size for files in groups.values() for status in files.values())
        others = [files for name, files in groups.items() if name != group]
        others.sort(key=lambda files: max(status.st_mtime_ns for status in files.values()))
        while used > free and others:
            for path, status in others.pop(0).items():
                path.unlink(missing_ok=True)
                used -= status.st_size
        return used <= free


def _group(identity: str, prompt: str) -> str:
    """What the names of the files of a model's vectors under a prompt begin with."""
    return sha256_of_text(f"{FORMAT}\n{identity}\n{prompt}")[:32]


@dataclass(frozen=True)
class _Index:
    """The keys of all blocks of a group in order, for a binary search."""

    blocks: Sequence[KeyedBlock]
    starts: NDArray[np.int64]
    """Where the rows of each block begin among those of all."""
    order: NDArray[np.int64]
    ordered: Keys

    @classmethod
    def over(cls, blocks: Sequence[KeyedBlock]) -> "_Index":
        keys = np.concatenate([np.empty((0, 2), np.uint64), *(block.keys for block in blocks)])
        sizes = np.array([len(block.keys) for block in blocks], dtype=np.int64)
        order = np.argsort(keys[:, 0], kind="stable")
        return cls(blocks, np.cumsum(sizes) - sizes, order, keys[order])

    def rows(self, keys: Keys) -> NDArray[np.int64]:
        """Where the vectors of ``keys`` stand; -1 where there is none. Shapes: ``(texts,)``."""
        if not len(self.order):
            return np.full(len(keys), -1)
        places = np.searchsorted(self.ordered[:, 0], keys[:, 0]).clip(max=len(self.order) - 1)
        # Two keys that agree in their first half alone count as one that is not there.
        equal = (self.ordered[places] == keys).all(axis=1)
        return np.where(equal, self.order[places], -1)

    def vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors that stand at ``rows``. Shapes: ``(len(rows), D)``."""
        width = self.blocks[0].width if self.blocks else 0
        found = np.empty((len(rows), width), dtype=np.float32)
        owners = np.searchsorted(self.starts, rows, side="right") - 1
        for number in np.unique(owners):
            own = owners == number
            found[own] = self.blocks[number].take(rows[own] - self.starts[number])
        return found
