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
from embedkit.data.vector_store import DTYPE, SIDES, VectorStore
from embedkit.distributed.progress import track_progress
from embedkit.models.embedder import Embedder
from embedkit.storage.blocks import BlockFile

_BLOCK = 2048
"""Number of texts in a block, which is what an interruption loses at most on each rank."""


def embed(records: Records, surrogate: Embedder, folder: Path, console: Console) -> VectorStore:
    """Embed every pair without prompts, each rank its share; undamaged vectors stay.

    Every rank calls this with the same folder, which all ranks share. A killed rank loses at most
    one block, and a rerun may use another number of ranks.
    """
    aside = folder.with_name(f"{folder.name}.part")
    facts = {"rows": len(records), "width": surrogate.width}
    # One rank looks for all: another may have written a block before this one looks.
    missing = distributed.on_main(partial(_missing, folder, aside, facts))
    if missing:
        files = _files(aside, facts)
        for side, blocks in missing.items():
            share = distributed.share_of(len(blocks), distributed.rank(), distributed.world_size())
            file, column = files[side], SIDES[side]
            rows = sum(len(file.rows_of(block)) for block in blocks[share])
            with track_progress(console, f"embedding {side} of {records.name}", rows) as advance:
                file.fill(blocks[share], partial(_encode, records, column, surrogate), advance)
        distributed.barrier()
        distributed.on_main(partial(_finish, files, aside, folder))
    return VectorStore(folder)


def _encode(
    records: Records, column: str, surrogate: Embedder, rows: NDArray[np.int64]
) -> NDArray[np.float32]:
    return surrogate.encode([text for (text,) in records.table.take(rows.tolist(), (column,))])


def _missing(folder: Path, aside: Path, facts: Mapping[str, int]) -> dict[str, list[int]]:
    """Return the blocks of each side that are to be written in ``aside``; none if all are whole."""
    stored, content = folder / "facts.json", json.dumps(facts)
    files = _files(folder, facts).values()
    if stored.is_file() and stored.read_text() == content and all(f.is_whole() for f in files):
        return {}
    if folder.is_dir():
        folder.rename(aside)
    aside.mkdir(parents=True, exist_ok=True)
    (aside / "facts.json").write_text(content)
    return {side: file.missing() for side, file in _files(aside, facts).items()}


def _files(folder: Path, facts: Mapping[str, int]) -> dict[str, BlockFile]:
    return {side: BlockFile(folder / f"{side}.f16", DTYPE, **facts, block=_BLOCK) for side in SIDES}


def _finish(files: Mapping[str, BlockFile], aside: Path, folder: Path) -> None:
    """Rename ``aside`` to ``folder``, on one rank alone."""
    assert all(file.is_whole() for file in files.values()), "a rank left a block out"
    aside.rename(folder)
