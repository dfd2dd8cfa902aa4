"""Fills the folder of the cache that has the rows of a source, and computes its key."""

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from embedkit.data import concepts
from embedkit.data.manifests.manifest import Description, HeldOut, Manifest
from embedkit.data.pairs import from_rows
from embedkit.data.pairs.from_rows import Pair
from embedkit.data.pairs.layout import ColumnLayout
from embedkit.data.pairs.table import TableWriter
from embedkit.data.sources.open_source import OpenedSource
from embedkit.data.sources.rows import RowStream, errors_named

FORMAT = 1
"""Part of every key: raise it when rows become other pairs, or pairs are written otherwise."""

Split = Literal["train", "held_out"]


def key_of(manifest: Manifest, opened: OpenedSource) -> str:
    """Return the name of the folder that the rows of ``manifest`` are kept in."""
    making = manifest.model_dump(
        include={"columns", "ignore", "filter", "drop_empty", "deduplicate", "same_label"}
    )
    if manifest.columns.score is None:
        # Keys of sources without scores stay as they were before there were scores.
        del making["columns"]["score"]
    share = manifest.held_out.share if manifest.held_out else None
    return opened.key(manifest.source, FORMAT, making=making, share=share)


def write(folder: Path, name: str, streams: Iterable[RowStream], description: Description) -> None:
    """Fill ``folder`` with one table for each split."""
    held_out = description.held_out if isinstance(description, Manifest) else None
    scored = description.columns.score is not None
    layout = ColumnLayout()
    with errors_named(name), ExitStack() as stack:
        writers = {
            split: stack.enter_context(TableWriter(table_path(folder, split), scored=scored))
            for split in splits_of(description)
        }
        for pair in from_rows.pairs(streams, description, layout):
            writers[_side(pair, held_out)].add(pair)
    layout.write(folder)


def splits_of(description: Description) -> tuple[Split, ...]:
    """Return the splits that a source has."""
    holds_out = isinstance(description, Manifest) and description.held_out is not None
    return ("train", "held_out") if holds_out else ("train",)


def table_path(folder: Path, split: Split) -> Path:
    """Return where the table of a split lies."""
    return folder / f"{split}.arrow"


def _side(pair: Pair, held_out: HeldOut | None) -> Split:
    """Return the split of a pair, and drop its negatives that belong to the other one."""
    if held_out is None:
        return "train"
    side = concepts.is_held_out(pair.concept, held_out.share)
    pair.negatives = [
        negative
        for negative, concept in zip(pair.negatives, pair.negative_concepts, strict=True)
        if concepts.is_held_out(concept, held_out.share) == side
    ]
    return "held_out" if side else "train"
