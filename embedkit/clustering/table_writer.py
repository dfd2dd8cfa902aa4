"""Write a batch table: the batches of each source, and the header that makes the table whole."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.data.batch_table import HEADER, SourceFacts, read_order, source_folder


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
    described = json.dumps(header, sort_keys=True)
    header["hash"] = hashlib.sha256(described.encode()).hexdigest()
    replace_text(folder / HEADER, json.dumps(header, indent=2) + "\n")


def write_order(folder: Path, order: NDArray[np.int64]) -> None:
    """Write the batches of a source, whole or not at all."""
    assert (np.bincount(order, minlength=len(order)) == 1).all(), "a row is not there once"
    aside = folder / "rows.part"
    order.astype("<i8").tofile(aside)
    aside.replace(folder / "rows.i64")


def replace_text(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all."""
    aside = path.with_name(f"{path.name}.part")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)
