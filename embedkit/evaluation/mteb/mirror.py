"""A local copy of the hub's data sets, from which mteb's own tasks read in its place."""

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mteb.abstasks.abstask import AbsTask

from embedkit.data.sources import hub
from embedkit.errors import ArgumentError, DataError
from embedkit.storage.cache import file_sha256
from embedkit.storage.hashing import sha256_of_text


def from_mirror(task: AbsTask, mirror: Path) -> AbsTask:
    """The task, reading its repository's folder under ``mirror``.

    A repository lies in ``owner/name``, as ``snapshot_download(local_dir=...)`` leaves it, or as in
    the hub's own cache. The revision becomes a hash of its files, so that other data are another
    result.

    Raises:
        DataError: the repository is not there, or holds no file.
    """
    source = task.metadata.dataset
    folder = _repository(mirror, source)
    files = _files(folder)
    if not files:
        raise DataError(f"{folder}: holds no file; {_remedy(mirror, source)}")
    lines = (f"{path.relative_to(folder).as_posix()} {file_sha256(path)}\n" for path in files)
    local = {**source, "path": str(folder), "revision": sha256_of_text("".join(lines))}
    described = task.metadata.model_copy(update={"dataset": local})
    # mteb hands out the same object to everyone who asks for a task, so it stays as it is; and what
    # an object, not its class, knows of its data is forgotten when mteb unloads them.
    mirrored = copy.copy(task)
    mirrored.__dict__.pop("metadata", None)
    mirrored.__class__ = type(type(task).__name__, (type(task),), {"metadata": described})
    return mirrored


def with_local_data(task: AbsTask, data_dir: Path | None) -> AbsTask:
    """Return the task, reading ``data_dir``, or its repository under ``$EMBEDKIT_HUB``, if any.

    A task folder brings its own data. Where ``data_dir`` is given, the hub is never asked.

    Raises:
        DataError: ``data_dir`` has no such repository, or ``$EMBEDKIT_HUB`` is no folder.
    """
    if task.data_loaded:
        return task
    if data_dir is not None:
        return from_mirror(task, data_dir)
    id_ = str(task.metadata.dataset["path"])
    if (folder := hub.mirror(id_)) is None:
        return task
    return from_mirror(task, folder.parents[id_.count("/")])


def check_mirror(mirror: Path, tasks: Iterable[AbsTask]) -> None:
    """Refuse a folder that holds the repository of none of ``tasks``.

    Raises:
        ArgumentError: there is no such folder, or it is laid out in another way.
    """
    if not mirror.is_dir():
        raise ArgumentError(("data_dir", f"there is no folder {mirror}"))
    sources = [task.metadata.dataset for task in tasks if not task.data_loaded]
    if not any(_places(mirror, source) for source in sources):
        wanted = ", ".join(sorted({str(source["path"]) for source in sources})[:3])
        reason = (
            f"{mirror} holds none of the {len(sources)} repositories that the tasks read "
            f"({wanted or 'task folders bring their own data'}); put each in a folder owner/name"
        )
        raise ArgumentError(("data_dir", reason))


def _repository(mirror: Path, source: Mapping[str, Any]) -> Path:
    for folder in _places(mirror, source):
        return folder
    raise DataError(f"{mirror / source['path']}: no such folder; {_remedy(mirror, source)}")


def _places(mirror: Path, source: Mapping[str, Any]) -> list[Path]:
    path, revision = str(source["path"]), str(source["revision"])
    cached = mirror / f"datasets--{path.replace('/', '--')}" / "snapshots" / revision
    return [folder for folder in (mirror / path, cached) if folder.is_dir()]


def _files(folder: Path) -> list[Path]:
    """What a repository holds; a download keeps its notes in files with a dot."""
    inside = (path for path in folder.rglob("*") if path.is_file())
    return sorted(
        path
        for path in inside
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _remedy(mirror: Path, source: Mapping[str, Any]) -> str:
    path, revision = source["path"], source["revision"]
    return (
        f"hf download {path} --repo-type dataset --revision {revision} --local-dir {mirror / path}"
    )
