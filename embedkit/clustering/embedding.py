"""Embed the pairs of a source with the surrogate: block by block, on all ranks, resumable."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from embedkit import distributed
from embedkit.data.pairs.records import Records
from embedkit.data.vector_store import DTYPE, FACTS, SIDES, VectorStore
from embedkit.distributed.progress import track_progress
from embedkit.models.embedder import Embedder
from embedkit.storage.atomic import write_text
from embedkit.storage.blocks import BlockFile

_BLOCK = 2048
"""Number of texts in a block, which is what an interruption loses at most on each rank."""


def embed(records: Records, surrogate: Embedder, folder: Path, console: Console) -> VectorStore:
    """Embed every pair without prompts, each rank its share; undamaged vectors stay.

    Every rank calls this with the same folder, which all ranks share. A killed rank loses at most
    one block, and a rerun may use another number of ranks.
    """
    facts = {"rows": len(records), "width": surrogate.width}
    files = {
        side: BlockFile(folder / f"{side}.f16", DTYPE, **facts, block=_BLOCK) for side in SIDES
    }

    def encode(column: str, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return surrogate.encode([text for (text,) in records.table.take(rows.tolist(), (column,))])

    # One rank looks for all: another may have written a block before this one looks.
    missing = distributed.on_main(partial(_missing, files, folder, json.dumps(facts)))
    if missing is not None:
        for side, file in files.items():
            share = distributed.share_of(
                len(missing[side]), distributed.rank(), distributed.world_size()
            )
            blocks = missing[side][share]
            rows = sum(len(file.rows_of(block)) for block in blocks)
            with track_progress(console, f"embedding {side} of {records.name}", rows) as advance:
                file.fill(blocks, partial(encode, SIDES[side]), advance)
        distributed.barrier()
        distributed.on_main(partial(_finish, files, folder, json.dumps(facts)))
    return VectorStore(folder)


def _missing(
    files: Mapping[str, BlockFile], folder: Path, facts: str
) -> dict[str, list[int]] | None:
    """Return the blocks of each side that are to be written, or ``None`` if the store is whole."""
    missing = {side: file.missing() for side, file in files.items()}
    marker = folder / FACTS
    if not any(missing.values()) and marker.is_file() and marker.read_text() == facts:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    marker.unlink(missing_ok=True)
    return missing


def _finish(files: Mapping[str, BlockFile], folder: Path, facts: str) -> None:
    assert all(file.is_whole() for file in files.values()), "a rank left a block out"
    write_text(folder / FACTS, facts)
