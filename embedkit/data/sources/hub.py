"""Finds data sets of the Hugging Face Hub at their commits, and reads their rows."""

import os
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from embedkit.data.manifests import hub_lock
from embedkit.data.manifests.hub_lock import reason
from embedkit.data.manifests.sources import HubSource
from embedkit.data.sources.files import renamed
from embedkit.data.sources.joins import joined
from embedkit.data.sources.rows import Row, RowStream, numbered
from embedkit.errors import DataError
from embedkit.storage.hashing import sha256_of_text
from embedkit.storage.offline import settle_network


class DatasetLocation(NamedTuple):
    """A data set as ``datasets`` is asked for it."""

    path: str
    """The data set's id, or a folder."""
    revision: str | None
    """The commit; ``None`` for a folder."""
    pinned: bool
    """Whether the manifest names just these rows."""


def locate(source: HubSource) -> DatasetLocation:
    """Find the source: as a folder, under ``$EMBEDKIT_HUB``, or at a commit on the hub.

    Raises:
        DataError: the commit is asked of the hub, and it cannot be reached; or ``$EMBEDKIT_HUB`` is
            no folder.
    """
    if (folder := Path(source.id)).is_dir():
        return DatasetLocation(str(folder), None, pinned=True)
    if mirrored := mirror(source.id):
        return DatasetLocation(str(mirrored), None, pinned=False)
    revision = source.revision or hub_lock.locked(source.id)
    if revision is None:
        revision = hub_lock.newest(source.id)
        warnings.warn(
            f"{source.id}: no revision is pinned, so the newest is read, {revision[:8]}: "
            "embedkit data lock pins it",
            stacklevel=2,
        )
    return DatasetLocation(source.id, revision, pinned=source.revision is not None)


def mirror(id_: str) -> Path | None:
    """Return the folder under ``$EMBEDKIT_HUB`` that stands for a data set, if there is one."""
    named = os.environ.get("EMBEDKIT_HUB")
    if not named:
        return None
    root = Path(named).expanduser()
    if not root.is_dir():
        raise DataError(f"EMBEDKIT_HUB is {named}, which is no folder: correct or unset it")
    return root / id_ if (root / id_).is_dir() else None


def streams(
    source: HubSource, location: DatasetLocation, *, streaming: bool
) -> Iterator[RowStream]:
    """Yield the rows of each configuration.

    ``streaming`` reads the hub's files as they come, without a copy on disk.
    """
    open_table = partial(_rows, location, streaming)
    for config in source.configs or (None,):
        name, rename = (config.name, config.rename) if config else (source.config, {})
        read = partial(open_table, name, source.split, rename)
        joins = [(join, open_table(join.config, join.split, {})) for join in source.joins]
        label = f"{source.id} {config.name}" if config else source.id
        yield numbered(f"{label} ({source.split})", joined(read, joins) if joins else read())


def _rows(
    at: DatasetLocation, streaming: bool, config: str | None, split: str, rename: dict[str, str]
) -> Iterator[Row]:
    import datasets

    # Of a folder that has changed, a copy that datasets made earlier may be taken for the new.
    streaming = streaming or at.revision is None
    if at.revision:
        settle_network()
    try:
        table = datasets.load_dataset(
            at.path, config, split=split, revision=at.revision, streaming=streaming
        )
    # The hub's client raises errors of half a dozen libraries.
    except Exception as error:
        place, remedy = at.path, "lay the folder out as on the hub"
        if at.revision:
            place += f" at {at.revision[:8]} on the hub"
            remedy = (
                "run embedkit data prepare where there is a network and bring $EMBEDKIT_CACHE or "
                f"$HF_HOME here, or put a copy into $EMBEDKIT_HUB/{at.path}"
            )
        raise DataError(f"cannot open {place} ({reason(error)}): {remedy}") from None
    if at.revision and not streaming:
        check_revision(at, table.info.download_checksums or {})
    for batch in table.with_format("arrow").iter(1024):
        yield from (renamed(row, rename, at.path) for row in batch.to_pylist())


def check_revision(at: DatasetLocation, urls: Iterable[str]) -> None:
    """Refuse another revision: offline, ``datasets`` takes the newest that is cached."""
    from_hub = [url for url in urls if url.startswith("hf://")]
    if from_hub and not any(f"@{at.revision}/" in url for url in from_hub):
        raise DataError(
            f"the cached copy of {at.path} is not revision {at.revision}, but {from_hub[0]}: fetch "
            "the pinned revision where there is a network"
        )


def state(folder: Path) -> str:
    """Return a hash that changes with the name, size or time of change of any file in a folder."""
    listing = [
        f"{path.relative_to(folder)} {path.stat().st_size} {path.stat().st_mtime_ns}"
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]
    return sha256_of_text("\n".join(listing))
