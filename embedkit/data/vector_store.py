"""Surrogate vectors of the pairs of one source, on disk: memory-mapped fp16."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedkit.errors import DataError
from embedkit.storage.blocks import mapped

SIDES = {"queries": "query", "documents": "positive"}
"""The files of a store, and the column of the pairs that each was made from."""
DTYPE = np.dtype(np.float16)
_READ = 2**16
"""Pairs read at a time."""


class VectorStore:
    """The vectors of one source, unit-norm; only what is read comes into memory.

    ``queries`` and ``documents`` are ``(n, D)``, fp16; row i is pair i. Pickles as its place.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            facts = json.loads((folder / "facts.json").read_text())
            self.queries, self.documents = (
                mapped(file_of(folder, side), DTYPE, rows=facts["rows"], width=facts["width"])
                for side in SIDES
            )
        except (OSError, ValueError) as error:
            raise DataError(
                f"{folder}: the vectors are not whole ({error}): remove the folder and run "
                "embedkit cluster again"
            ) from None

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def width(self) -> int:
        return int(self.queries.shape[1])

    def blocks(self) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Queries and documents in fp32, from the first pair to the last, some at a time."""
        for start in range(0, len(self), _READ):
            rows = slice(start, start + _READ)
            yield self.queries[rows].astype(np.float32), self.documents[rows].astype(np.float32)

    def __getstate__(self) -> Path:
        return self.folder

    def __setstate__(self, folder: Path) -> None:
        self.__init__(folder)  # type: ignore[misc]


def file_of(folder: Path, side: str) -> Path:
    """The file with the vectors of a side, one of ``SIDES``."""
    return folder / f"{side}.f16"
