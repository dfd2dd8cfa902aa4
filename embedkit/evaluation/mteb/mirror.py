"""Lets mteb's tasks read a local mirror of the hub's data sets instead of the hub."""

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mteb.abstasks.abstask import AbsTask

from embedkit.data.sources import hub
from embedkit.errors import ArgumentError, DataError, some
from embedkit.storage.cache import file_sha256
from embedkit.storage.hashing import sha256_of_text
from embedkit.storage.offline import settle_network


def from_folder(task: AbsTask, folder: Path) -> AbsTask:
    """Return a copy of the task that reads ``folder``, a copy of its repository.

    A hash of its files becomes the revision, so that other data give another result.

    Raises:
        DataError: the folder holds no file.
    """
    paths = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    # A download stores notes of its own in hidden files.
    paths = [path for path in paths if not any(part.startswith(".") for part in path.parts)]
    if not paths:
        raise _lacking(task, folder, "holds no file")
    lines = (f"{path.as_posix()} {file_sha256(folder / path)}\n" for path in paths)
    revision = sha256_of_text("".join(lines))
    local = {**task.metadata.dataset, "path": str(folder), "revision": revision}
    metadata = task.metadata.model_copy(update={"dataset": local})
    # mteb gives the same object to all who ask for a task, so a copy is changed. Its class is
    # changed, since mteb drops what an object itself knows of its data when it unloads them.
    mirrored = copy.copy(task)
    mirrored.__dict__.pop("metadata", None)
    mirrored.__class__ = type(type(task).__name__, (type(task),), {"metadata": metadata})
    return mirrored


def with_local_data(task: AbsTask, data_dir: Path | None) -> AbsTask:
    """Return a task that reads ``data_dir``, or ``$EMBEDKIT_HUB`` if that has its repository.

    The task of a task folder keeps its own data. With ``data_dir``, the hub is never asked.

    Raises:
        DataError: ``data_dir`` has no folder of the repository, or the folder holds no file.
    """
    if task.data_loaded:
        return task
    source = task.metadata.dataset
    folder = folder_of(data_dir, source) if data_dir else hub.mirror(str(source["path"]))
    if folder:
        return from_folder(task, folder)
    if data_dir:
        raise _lacking(task, data_dir / source["path"], "no such folder")
    # Else every task would ask a hub that does not answer, for half a minute and in many lines.
    settle_network()
    return task


def _lacking(task: AbsTask, folder: Path, mistake: str) -> DataError:
    """Return an error that names the command which fetches the repository of a task."""
    name, revision = task.metadata.dataset["path"], task.metadata.dataset["revision"]
    remedy = f"hf download {name} --repo-type dataset --revision {revision} --local-dir {folder}"
    return DataError(f"{folder}: {mistake}; {remedy}")


def check_mirror(mirror: Path, tasks: Iterable[AbsTask]) -> None:
    """Raise ``ArgumentError`` for a folder that holds the repository of none of ``tasks``."""
    if not mirror.is_dir():
        raise ArgumentError(("data_dir", f"there is no folder {mirror}"))
    sources = [task.metadata.dataset for task in tasks if not task.data_loaded]
    if sources and not any(folder_of(mirror, source) for source in sources):
        wanted = some(sorted({str(source["path"]) for source in sources}))
        reason = (
            f"{mirror} holds none of the {len(sources)} repositories that the tasks read "
            f"({wanted}); put each in a folder owner/name"
        )
        raise ArgumentError(("data_dir", reason))


def folder_of(mirror: Path, source: Mapping[str, Any]) -> Path | None:
    """Return the folder of a repository, ``owner/name`` or that of the hub's own cache, if any.

    ``snapshot_download(local_dir=...)`` writes the former.
    """
    name, revision = str(source["path"]), str(source["revision"])
    cached = mirror / f"datasets--{name.replace('/', '--')}" / "snapshots" / revision
    return next((folder for folder in (mirror / name, cached) if folder.is_dir()), None)
