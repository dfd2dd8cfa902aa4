"""Write a batch table: the batches of each source, and the header that makes the table whole."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.data.batch_table import HEADER, SourceFacts, read_order, source_folder
from embedkit.storage.atomic import write_json, written_aside
from embedkit.storage.hashing import sha256_of_json


def write_header(
    folder: Path,
    sources: Sequence[SourceFacts],
    settings: Mapping[str, Any],
    surrogate: Mapping[str, str],
) -> None:
    """Make the table whole, once the batches of all sources are there."""
    digest = hashlib.sha256()
    for number, each in enumerate(sources):
        digest.update(read_order(source_folder(folder, number), each.rows).data)
    header: dict[str, Any] = {
        "settings": dict(settings),
        "surrogate": dict(surrogate),
        "sources": [asdict(each) for each in sources],
        "batches": digest.hexdigest(),
    }
    header["hash"] = sha256_of_json(header)
    write_json(folder / HEADER, header)


def write_order(folder: Path, order: NDArray[np.int64]) -> None:
    """Write the batches of a source, whole or not at all."""
    assert (np.bincount(order, minlength=len(order)) == 1).all(), "a row is not there once"
    with written_aside(folder / "rows.i64") as aside:
        order.astype("<i8").tofile(aside)
