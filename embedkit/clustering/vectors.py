"""Surrogate vectors of pairs on disk: memory-mapped fp16, written in blocks by all ranks."""

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from embedkit import distributed
from embedkit.data.records import Records
from embedkit.errors import DataError
from embedkit.models.embedder import Embedder

SIDES = ("queries", "documents")
_BLOCK = 2048
"""Pairs that an interruption loses at most, on each rank."""
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
            shape = (facts["rows"], facts["width"])
            self.queries, self.documents = (
                np.memmap(_path(folder, side), np.float16, mode="r", shape=shape) for side in SIDES
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


def embed(records: Records, surrogate: Embedder, folder: Path, console: Console) -> VectorStore:
    """Embed every pair without prompts, each rank its share; what is there already stays.

    Called on every rank, for one folder that all of them see. Whoever is killed loses a block, and
    ranks may be more or fewer the next time.
    """
    aside = folder.with_name(f"{folder.name}.part")
    if not distributed.on_main(folder.is_dir):
        # Told by one rank: another may have written a block before this one looks.
        reserve = partial(_reserve, aside, len(records), surrogate.backbone.width)
        open_blocks = distributed.on_main(reserve)
        mine = distributed.share_of(len(open_blocks), distributed.rank(), distributed.world_size())
        with _progress(console) as progress:
            for block in progress.track(open_blocks[mine], description=records.name):
                _write(aside, block, records, surrogate)
        distributed.barrier()
        distributed.on_main(partial(_publish, aside, folder))
    return VectorStore(folder)


def _reserve(aside: Path, rows: int, width: int) -> list[int]:
    """Make files of their final size, and tell which blocks are still to be written.

    The third file has a byte for each block, which is 1 once the block is whole.
    """
    aside.mkdir(parents=True, exist_ok=True)
    sizes = {_path(aside, side): rows * width * 2 for side in SIDES}
    for path, size in {**sizes, aside / "done": -(-rows // _BLOCK)}.items():
        path.touch()
        os.truncate(path, size)
    (aside / "facts.json").write_text(json.dumps({"rows": rows, "width": width}))
    done = np.fromfile(aside / "done", dtype=np.uint8)
    return [int(block) for block in np.flatnonzero(done == 0)]


def _write(aside: Path, block: int, records: Records, surrogate: Embedder) -> None:
    start = block * _BLOCK
    pairs = records.take(range(start, min(start + _BLOCK, len(records))))
    texts = [pair.query for pair in pairs], [pair.positive for pair in pairs]
    for side, own in zip(SIDES, texts, strict=True):
        vectors = surrogate.encode(own).astype(np.float16)
        _put(_path(aside, side), start * vectors.shape[1] * 2, vectors.tobytes())
    # After the vectors, so that a block with its byte set is whole.
    _put(aside / "done", block, b"\1")


def _put(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _publish(aside: Path, folder: Path) -> None:
    assert np.fromfile(aside / "done", dtype=np.uint8).all(), "a rank left a block out"
    (aside / "done").unlink()
    aside.rename(folder)


def _path(folder: Path, side: str) -> Path:
    return folder / f"{side}.f16"


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("embed {task.description}", markup=False),
        BarColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
