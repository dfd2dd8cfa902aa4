"""Surrogate vectors of pairs on disk: memory-mapped fp16, written in blocks by all ranks."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from embedkit import distributed
from embedkit.data.pairs.records import Records
from embedkit.errors import DataError
from embedkit.models.embedder import Embedder
from embedkit.storage.blocks import BlockFile, mapped

_COLUMNS = {"queries": "query", "documents": "positive"}
"""Of each side."""
_TYPE = np.dtype(np.float16)
_BLOCK = 2048
"""Texts that an interruption loses at most, on each rank."""
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
                mapped(_path(folder, side), _TYPE, rows=facts["rows"], width=facts["width"])
                for side in _COLUMNS
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
                    taken = records.table.take(file.rows_of(block).tolist(), (_COLUMNS[side],))
                    file.write(block, surrogate.encode([text for (text,) in taken]))
        distributed.barrier()
        distributed.on_main(partial(_finish, list(files.values()), aside, folder))
    return VectorStore(folder)


def _reserve(aside: Path, rows: int, width: int) -> dict[str, BlockFile]:
    """The file of each side, of its final size."""
    aside.mkdir(parents=True, exist_ok=True)
    (aside / "facts.json").write_text(json.dumps({"rows": rows, "width": width}))
    return {
        side: BlockFile(_path(aside, side), _TYPE, rows=rows, width=width, block=_BLOCK)
        for side in _COLUMNS
    }


def _finish(files: list[BlockFile], aside: Path, folder: Path) -> None:
    """Give the folder its name; by one rank, which another's look at the files would race with."""
    assert not any(file.missing() for file in files), "a rank left a block out"
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
