"""Stores token ids of documents on disk: memory-mapped, appended in blocks, checked by hash.

For each split, ``<split>.ids`` has all ids side by side, and ``<split>.offsets`` where each
document begins and the last one ends. ``blocks.jsonl`` has a line for each block that is whole.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from embedkit.data.concepts import Split
from embedkit.errors import DataError
from embedkit.storage.hashing import sha256_of_text

_BLOCK = 2**22
"""Tokens after which a block is written."""
_SCANNED = 2**22
"""Documents whose lengths are in memory at a time."""
_REMEDY = "remove its folder, and it is made anew"


class TokenStore:
    """The documents of one split; only what is read comes into memory. Pickles as its folder."""

    def __init__(self, folder: Path, split: Split) -> None:
        self.folder, self.split = folder, split
        facts = json.loads((folder / "facts.json").read_text())
        counts = facts["splits"][split]
        self.content: str = counts["content"]
        """A hash of all ids and of where documents end, in order."""
        self.ids = _mapped(folder / f"{split}.ids", np.dtype(facts["dtype"]), counts["tokens"])
        self.offsets = _mapped(
            folder / f"{split}.offsets", np.dtype(np.int64), counts["documents"] + 1
        )

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self.offsets) - 1

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    def lengths(self) -> Iterator[NDArray[np.int64]]:
        """Yield the lengths of all documents without special tokens, some millions at a time."""
        for start in range(0, len(self), _SCANNED):
            yield np.diff(self.offsets[start : start + _SCANNED + 1])

    def verify(self) -> None:
        """Read everything and compare it with the hashes that were taken when it was written.

        Raises:
            DataError: it is no longer what was written.
        """
        documents = tokens = 0
        for number, line in enumerate((self.folder / "blocks.jsonl").read_bytes().splitlines()):
            counts = json.loads(line)[self.split]
            ids = self.ids[tokens : tokens + counts["tokens"]]
            ends = self.offsets[documents + 1 : documents + counts["documents"] + 1]
            if _digest(ids, ends) != counts["sha256"]:
                raise DataError(
                    f"{self.folder}: block {number} of {self.split} is not as it was written: "
                    f"{_REMEDY}"
                )
            documents, tokens = documents + counts["documents"], tokens + counts["tokens"]

    def __reduce__(self) -> tuple[type[Self], tuple[Path, Split]]:
        return type(self), (self.folder, self.split)


class StoreWriter:
    """Appends documents to the stores of a folder, after the last block that is whole there."""

    def __init__(self, folder: Path, splits: Sequence[Split], dtype: np.dtype[Any]) -> None:
        self._folder, self._splits, self._dtype = folder, splits, dtype
        self._journal = folder / "blocks.jsonl"
        self._journal.touch()
        written = self._journal.read_bytes()
        # A killed process may have left half a line.
        whole = written[: written.rfind(b"\n") + 1]
        os.truncate(self._journal, len(whole))
        self._blocks = [json.loads(line) for line in whole.splitlines()]
        self.read = sum(block["read"] for block in self._blocks)
        """Documents of the source that whole blocks account for."""
        for split in splits:
            self._truncate(split, "ids", self._total(split, "tokens") * dtype.itemsize)
            self._truncate(split, "offsets", (self._total(split, "documents") + 1) * 8)
        self._begin()

    def add(self, split: Split, ids: Sequence[int]) -> None:
        """Append a document; one without tokens is read, but not kept."""
        self._read += 1
        if len(ids):
            self._pending[split].append(np.array(ids, dtype=self._dtype))
            self._size += len(ids)
        if self._size >= _BLOCK:
            self.flush()

    def flush(self) -> None:
        """Write what was added since the last block as a block."""
        if not self._read:
            return
        block: dict[str, Any] = {"read": self._read}
        for split, documents in self._pending.items():
            ids = np.concatenate([np.empty(0, self._dtype), *documents])
            ends = np.cumsum([*map(len, documents)], dtype=np.int64) + self._total(split, "tokens")
            _append(self._folder / f"{split}.ids", ids.tobytes())
            _append(self._folder / f"{split}.offsets", ends.tobytes())
            counts = {"documents": len(documents), "tokens": len(ids)}
            block[split] = {**counts, "sha256": _digest(ids, ends)}
        # After the data, so that a block with a line is whole.
        _append(self._journal, f"{json.dumps(block)}\n".encode())
        self._blocks.append(block)
        self._begin()

    def finish(self) -> None:
        """Write what is pending, and what ``TokenStore`` reads first."""
        self.flush()
        facts: dict[str, Any] = {"dtype": str(self._dtype), "splits": {}}
        for split in self._splits:
            totals = {kind: self._total(split, kind) for kind in ("documents", "tokens")}
            hashes = "".join(block[split]["sha256"] for block in self._blocks)
            facts["splits"][split] = {**totals, "content": sha256_of_text(hashes)}
        (self._folder / "facts.json").write_text(json.dumps(facts))

    def _total(self, split: Split, kind: str) -> int:
        return sum(block[split][kind] for block in self._blocks)

    def _begin(self) -> None:
        self._read = self._size = 0
        self._pending: dict[Split, list[NDArray[Any]]] = {split: [] for split in self._splits}

    def _truncate(self, split: Split, kind: str, size: int) -> None:
        """Remove what was written of a block that did not become whole."""
        with (self._folder / f"{split}.{kind}").open("ab") as file:
            on_disk = not self._blocks or file.tell() >= size
            assert on_disk, "a block was entered before its data were on disk"
            # A new file of offsets grows by this to its first offset, which is 0.
            file.truncate(size)


def _mapped(path: Path, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}: {_REMEDY}") from None
    if size != count * dtype.itemsize:
        raise DataError(f"{path}: {size} bytes, expected {count * dtype.itemsize}: {_REMEDY}")
    # An empty file cannot be mapped.
    return np.memmap(path, dtype, mode="r", shape=(count,)) if count else np.empty(0, dtype)


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _digest(ids: NDArray[Any], ends: NDArray[np.int64]) -> str:
    return hashlib.sha256(ids.tobytes() + ends.tobytes()).hexdigest()
