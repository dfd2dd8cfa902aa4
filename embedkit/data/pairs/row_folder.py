"""The folder in the cache that has the rows of a source: its key, and how it is filled."""

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from embedkit.data import concepts
from embedkit.data.manifests.manifest import Description, HeldOut, Manifest
from embedkit.data.pairs import from_rows
from embedkit.data.pairs.from_rows import Pair
from embedkit.data.pairs.layout import Layout
from embedkit.data.pairs.table import TableWriter
from embedkit.data.sources import open_source
from embedkit.data.sources.open_source import OpenedSource, RowStream
from embedkit.errors import DataError
from embedkit.storage.hashing import sha256_of_json

FORMAT = 1
"""Part of every key: raise it when rows become other pairs, or pairs are written otherwise."""

Split = Literal["train", "held_out"]


def key_of(manifest: Manifest, opened: OpenedSource) -> str:
    """Return the name of the folder that the rows of ``manifest`` are kept in."""
    making = manifest.model_dump(
        include={"columns", "ignore", "filter", "drop_empty", "deduplicate", "same_label"}
    )
    if manifest.columns.score is None:
        # Sources without scores are called as they were before there were any.
        del making["columns"]["score"]
    parts = {
        "making": making,
        "share": manifest.held_out.share if manifest.held_out else None,
        "reader": manifest.source.model_dump(mode="json").get("reader"),
        "source": opened.identity,
        "formats": [FORMAT, open_source.FORMAT],
    }
    return sha256_of_json(parts)[:32]


def key_of_content(content: str) -> str:
    """Return the name of the folder for rows that no manifest describes, by the hash of them."""
    return f"rows-{FORMAT}-{content[:32]}"


def write(folder: Path, name: str, parts: Iterable[RowStream], description: Description) -> None:
    """Fill ``folder`` with one table for each split."""
    held_out = description.held_out if isinstance(description, Manifest) else None
    scored = description.columns.score is not None
    layout = Layout()
    try:
        with ExitStack() as stack:
            writers = {
                split: stack.enter_context(TableWriter(table_path(folder, split), scored=scored))
                for split in splits_of(description)
            }
            for pair in from_rows.pairs(parts, description, layout):
                writers[_side(pair, held_out)].add(pair)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    layout.write(folder)


def splits_of(description: Description) -> tuple[Split, ...]:
    """Return the splits that a source has."""
    holds_out = isinstance(description, Manifest) and description.held_out is not None
    return ("train", "held_out") if holds_out else ("train",)


def table_path(folder: Path, split: Split) -> Path:
    """Return where the table of a split lies."""
    return folder / f"{split}.arrow"


def _side(pair: Pair, held_out: HeldOut | None) -> Split:
    """The split of the pair, which loses the negatives that belong to the other one."""
    if held_out is None:
        return "train"
    side = concepts.is_held_out(pair.concept, held_out.share)
    pair.negatives = [
        negative
        for negative, concept in zip(pair.negatives, pair.negative_concepts, strict=True)
        if concepts.is_held_out(concept, held_out.share) == side
    ]
    return "held_out" if side else "train"
