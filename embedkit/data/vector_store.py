"""Vectors of the pairs of a source by the surrogate model: fp16 files, memory-mapped."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedkit.errors import DataError
from embedkit.storage.blocks import mapped

SIDES = {"queries": "query", "documents": "positive"}
"""Names of the files of a store, and the column of the pairs that each was made from."""
FACTS = "facts.json"
"""File with the shape of the vectors, which is written last and makes a store whole."""
DTYPE = np.dtype(np.float16)
_PAIRS = 2**16
"""Number of pairs that are read at a time."""


class VectorStore:
    """Unit vectors of one source, memory-mapped. A store pickles as the path of its folder.

    ``queries`` and ``documents`` are ``(n, D)``, fp16; row i belongs to pair i.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            facts = json.loads((folder / FACTS).read_text())
            self.queries, self.documents = (
                mapped(folder / f"{side}.f16", DTYPE, rows=facts["rows"], width=facts["width"])
                for side in SIDES
            )
        except (OSError, ValueError) as error:
            raise DataError(
                f"{folder}: the vectors are not whole ({error}): remove the folder and run "
                "embedkit cluster again"
            ) from None

    def __len__(self) -> int:
        return len(self.queries)

    def __reduce__(self) -> tuple[type["VectorStore"], tuple[Path]]:
        return VectorStore, (self.folder,)

    @property
    def width(self) -> int:
        return int(self.queries.shape[1])

    def blocks(self) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Yield some queries and documents at a time, in fp32, in the order of the pairs."""
        for start in range(0, len(self), _PAIRS):
            rows = slice(start, start + _PAIRS)
            yield self.queries[rows].astype(np.float32), self.documents[rows].astype(np.float32)
