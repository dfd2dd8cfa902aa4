"""Folders and file hashes under ``$EMBEDKIT_CACHE``: written once, whole, and never changed."""

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock

from embedkit.errors import DataError
from embedkit.storage.atomic import sync
from embedkit.storage.folders import writing_to
from embedkit.storage.hashing import sha256_of_file, sha256_of_text

_WHOLE = "whole"
"""File that lists the sizes of all files of a finished folder."""


def root() -> Path:
    """Return the cache folder: ``$EMBEDKIT_CACHE``, or ``~/.cache/embedkit``."""
    return Path(os.environ.get("EMBEDKIT_CACHE") or "~/.cache/embedkit").expanduser()


def built(
    kind: str,
    key: str,
    build: Callable[[Path], object],
    *,
    resumable: bool = False,
    verified: Callable[[Path], bool] | None = None,
) -> Path:
    """Return the folder ``kind``/``key``, which ``build`` fills unless an earlier call did.

    Of several processes one builds and the others wait. A build that fails leaves no folder; if it
    is ``resumable``, the next build continues it, unless the data were at fault. A finished folder
    that is not ``verified`` is passed to ``build`` again, which must be resumable, to be mended.
    """
    folder = root() / kind / key
    if _is_whole(folder, verified):
        return folder
    _make(folder.parent)
    with FileLock(folder.with_name(f".{key}.lock")):
        if _is_whole(folder, verified):
            return folder
        # Under the lock, unfinished folders were left by a process that died.
        aside = folder.with_name(f".{key}.aside")
        mended = verified is not None and folder.is_dir()
        if mended or not resumable:
            shutil.rmtree(aside, ignore_errors=True)
        if mended:
            folder.rename(aside)
        shutil.rmtree(folder, ignore_errors=True)
        aside.mkdir(exist_ok=True)
        try:
            build(aside)
            publish(aside, folder)
        except BaseException as error:
            if not resumable or isinstance(error, DataError):
                shutil.rmtree(aside, ignore_errors=True)
            raise
    return folder


@contextmanager
def scratch(kind: str) -> Iterator[Path]:
    """Lend a folder beside those of ``kind``, whose key is known only when it has been written.

    It is deleted after the block, unless it was published.
    """
    parent = root() / kind
    _make(parent)
    with TemporaryDirectory(dir=parent, prefix=".scratch-", ignore_cleanup_errors=True) as aside:
        yield Path(aside)


@contextmanager
def scratch_database(kind: str) -> Iterator[sqlite3.Connection]:
    """Lend an empty database on disk, which is deleted after the block."""
    with scratch(kind) as folder, closing(sqlite3.connect(folder / "rows.sqlite")) as database:
        database.execute("pragma journal_mode = off")
        yield database


def publish(aside: Path, folder: Path) -> None:
    """Rename a finished folder; if another process was faster, its equal folder stays."""
    (aside / _WHOLE).unlink(missing_ok=True)
    sizes = {path.name: path.stat().st_size for path in aside.iterdir()}
    for path in aside.iterdir():
        sync(path)
    (aside / _WHOLE).write_text(json.dumps(sizes))
    try:
        aside.rename(folder)
    except OSError:
        if not _is_whole(folder):
            raise
        shutil.rmtree(aside)


def file_sha256(path: Path) -> str:
    """Return the file's SHA-256, which is noted until its size or modification time changes."""
    status, location = path.stat(), str(path.resolve())
    state = [location, status.st_size, status.st_mtime_ns]
    note = root() / "hashes" / sha256_of_text(location)[:32]
    # A note that is missing, damaged or cannot be written costs one more reading of the file.
    with suppress(OSError, ValueError):
        *noted, digest = json.loads(note.read_text())
        if noted == state:
            return str(digest)
    digest = sha256_of_file(path)
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        # Several processes may note the same hash at a time.
        aside = note.with_name(f".{note.name}.{os.getpid()}")
        aside.write_text(json.dumps([*state, digest]))
        aside.replace(note)
    return digest


def _make(folder: Path) -> None:
    """Make a folder of the cache, in which files can be written."""
    remedy = "set EMBEDKIT_CACHE to a folder that can be written"
    with writing_to(folder, remedy):
        folder.mkdir(parents=True, exist_ok=True)


def _is_whole(folder: Path, verified: Callable[[Path], bool] | None = None) -> bool:
    try:
        sizes = json.loads((folder / _WHOLE).read_text())
        same = all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False
    return same and (verified is None or verified(folder))
