"""Vectors of the pairs of a source on disk: encoded on all ranks, resumable, memory-mapped."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedkit import distributed
from embedkit.data.pairs.records import Records
from embedkit.distributed.progress import track_progress
from embedkit.errors import DataError
from embedkit.storage.atomic import write_text
from embedkit.storage.blocks import BlockFile

_SIDES = {"queries": "query", "documents": "positive"}
"""Names of the files of a store, and the column of the pairs that each is made from."""
_FACTS = "facts.json"
"""File with the shape of the vectors, which is written last and makes a store whole."""
_DTYPE = np.dtype(np.float16)
_BLOCK = 2048
"""Number of texts in a block, which is what an interruption loses at most on each rank."""


class VectorStore:
    """Unit vectors of one source, memory-mapped. A store pickles as the path of its folder.

    ``queries`` and ``documents`` are ``(n, D)``, fp16; row i belongs to pair i.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            facts = json.loads((folder / _FACTS).read_text())
            self.queries, self.documents = (file.mapped() for file in _files(folder, facts))
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


def store_vectors(
    records: Records,
    encode: Callable[[list[str]], NDArray[np.float32]],
    folder: Path,
    *,
    width: int,
) -> VectorStore:
    """Encode every pair without prompts, each rank its share; undamaged vectors stay.

    Every rank calls this with the same folder, which all ranks share. A killed rank loses at most
    one block, and a rerun may use another number of ranks.

    Shapes: ``encode`` maps n texts to ``(n, width)``.
    """
    facts = {"rows": len(records), "width": width}
    files = _files(folder, facts)
    marker = folder / _FACTS
    written = json.dumps(facts)

    def begin() -> list[list[int]] | None:
        """Return the blocks of each file that are to be written, or None for a whole store."""
        missing = [file.missing() for file in files]
        if not any(missing) and marker.is_file() and marker.read_text() == written:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        marker.unlink(missing_ok=True)
        return missing

    def encode_rows(column: str, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return encode([text for (text,) in records.table.take(rows.tolist(), (column,))])

    def finish() -> None:
        assert all(file.is_whole() for file in files), "a rank left a block out"
        write_text(marker, written)

    # One rank looks for all: another may have written a block before this one looks.
    missing = distributed.on_main(begin)
    if missing is None:
        return VectorStore(folder)
    ranks = distributed.rank(), distributed.world_size()
    for (side, column), file, blocks in zip(_SIDES.items(), files, missing, strict=True):
        if blocks:
            share = blocks[distributed.share_of(len(blocks), *ranks)]
            rows = sum(len(file.rows_of(block)) for block in share)
            with track_progress(f"embedding {side} of {records.name}", rows) as advance:
                file.fill(share, partial(encode_rows, column), advance)
    distributed.barrier()
    distributed.on_main(finish)
    return VectorStore(folder)


def _files(folder: Path, facts: Mapping[str, int]) -> list[BlockFile]:
    """Return the file of each side."""
    return [BlockFile(folder / f"{side}.f16", _DTYPE, **facts, block=_BLOCK) for side in _SIDES]
