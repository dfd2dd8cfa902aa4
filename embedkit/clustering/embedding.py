"""Embed the pairs of a source with the surrogate: written in blocks by all ranks, resumable."""

import json
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from embedkit import distributed
from embedkit.data.pairs.records import Records
from embedkit.data.vector_store import DTYPE, SIDES, VectorStore, file_of
from embedkit.models.embedder import Embedder
from embedkit.storage.blocks import BlockFile

_BLOCK = 2048
"""Texts that an interruption loses at most, on each rank."""


def embed(records: Records, surrogate: Embedder, folder: Path, console: Console) -> VectorStore:
    """Embed every pair without prompts, each rank its share; what is there already stays.

    Called on every rank, for one folder that all of them see. Whoever is killed loses a block, and
    ranks may be more or fewer the next time.
    """
    aside = folder.with_name(f"{folder.name}.part")
    if not distributed.on_main(folder.is_dir):
        reserve = partial(_reserve, aside, len(records), surrogate.backbone.width)
        # Told by one rank: another may have written a block before this one looks.
        missing = distributed.on_main(lambda: [file.missing() for file in reserve().values()])
        files = reserve()
        with _progress(console) as progress:
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


def _reserve(aside: Path, rows: int, width: int) -> dict[str, BlockFile]:
    """The file of each side, of its final size."""
    aside.mkdir(parents=True, exist_ok=True)
    (aside / "facts.json").write_text(json.dumps({"rows": rows, "width": width}))
    return {
        side: BlockFile(file_of(aside, side), DTYPE, rows=rows, width=width, block=_BLOCK)
        for side in SIDES
    }


def _finish(files: list[BlockFile], aside: Path, folder: Path) -> None:
    """Give the folder its name; by one rank, which another's look at the files would race with."""
    assert not any(file.missing() for file in files), "a rank left a block out"
    aside.rename(folder)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("embed {task.description}", markup=False),
        BarColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
