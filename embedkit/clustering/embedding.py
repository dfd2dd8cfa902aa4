"""Embed the pairs of a source with the surrogate: written in blocks by all ranks, resumable."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, TimeRemainingColumn

from embedkit import distributed
from embedkit.data.pairs.records import Records
from embedkit.data.vector_store import DTYPE, SIDES, VectorStore, file_of
from embedkit.distributed.progress import progress_bar
from embedkit.models.embedder import Embedder
from embedkit.storage.blocks import BlockFile

_BLOCK = 2048
"""Texts that an interruption loses at most, on each rank."""


def embed(records: Records, surrogate: Embedder, folder: Path, console: Console) -> VectorStore:
    """Embed every pair without prompts, each rank its share; what is there undamaged stays.

    Called on every rank, for one folder that all of them see. Whoever is killed loses a block, and
    ranks may be more or fewer the next time.
    """
    aside = folder.with_name(f"{folder.name}.part")
    facts = {"rows": len(records), "width": surrogate.backbone.width}
    if not distributed.on_main(partial(_is_whole, folder, facts)):
        # Told by one rank: another may have written a block before this one looks.
        missing = distributed.on_main(partial(_begin, folder, aside, facts))
        files = _files(aside, facts)
        columns = ("embed {task.description}", BarColumn(), TimeRemainingColumn())
        with progress_bar(*columns, console=console) as progress:
            for (side, file), blocks in zip(files.items(), missing, strict=True):
                own = distributed.share_of(
                    len(blocks), distributed.rank(), distributed.world_size()
                )
                for block in progress.track(blocks[own], description=f"{side} of {records.name}"):
                    # A block has the same texts after an interruption and on any number of ranks:
                    # every text is encoded beside the same others, and its vector is the same.
                    taken = records.table.take(file.rows_of(block).tolist(), (SIDES[side],))
                    file.write(block, surrogate.encode([text for (text,) in taken]))
        distributed.barrier()
        distributed.on_main(partial(_finish, list(files.values()), aside, folder))
    return VectorStore(folder)


def _is_whole(folder: Path, facts: Mapping[str, int]) -> bool:
    """Whether the vectors of both sides are there and as they were written."""
    stored = folder / "facts.json"
    if not stored.is_file() or stored.read_bytes() != json.dumps(facts).encode():
        return False
    return all(file.is_whole() for file in _files(folder, facts).values())


def _begin(folder: Path, aside: Path, facts: Mapping[str, int]) -> list[list[int]]:
    """The blocks that are still to be written, of each side, in what is left of earlier work."""
    if folder.is_dir():
        folder.rename(aside)
    aside.mkdir(parents=True, exist_ok=True)
    (aside / "facts.json").write_text(json.dumps(facts))
    return [file.missing() for file in _files(aside, facts).values()]


def _files(folder: Path, facts: Mapping[str, int]) -> dict[str, BlockFile]:
    """The file of each side."""
    return {side: BlockFile(file_of(folder, side), DTYPE, **facts, block=_BLOCK) for side in SIDES}


def _finish(files: list[BlockFile], aside: Path, folder: Path) -> None:
    """Give the folder its name; by one rank, which another's look at the files would race with."""
    assert not any(file.missing() for file in files), "a rank left a block out"
    aside.rename(folder)
