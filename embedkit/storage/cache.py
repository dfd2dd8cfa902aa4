"""Folders and file hashes under ``$EMBEDKIT_CACHE``: written once, whole, and never changed."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from embedkit.errors import DataError

_WHOLE = "whole"
_CHUNK = 1 << 20


def root() -> Path:
    """The cache folder: ``$EMBEDKIT_CACHE``, or ``~/.cache/embedkit``."""
    return Path(os.environ.get("EMBEDKIT_CACHE") or "~/.cache/embedkit").expanduser()


def built(
    kind: str,
    key: str,
    build: Callable[[Path], None],
    *,
    resumable: bool = False,
    verified: Callable[[Path], bool] | None = None,
) -> Path:
    """The folder of ``key``, which ``build`` fills unless an earlier call did.

    Of several processes one builds and the others wait. A build that fails or is killed leaves no
    folder; if it is ``resumable``, the next one finds what it had written, unless the data were
    at fault.

    Args:
        kind: the folder's parent.
        key: the folder's name.
        build: fills a folder.
        resumable: whether ``build`` goes on with what an earlier call of it has written.
        verified: whether what ``build`` has written is undamaged; ``build`` mends it if it is not.
    """
    folder = root() / kind / key

    def is_whole() -> bool:
        return _is_whole(folder) and (verified is None or verified(folder))

    if is_whole():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{key}.lock")):
        if not is_whole():
            aside = folder.with_name(f".{key}.aside")
            if verified is not None and folder.is_dir():
                shutil.rmtree(aside, ignore_errors=True)
                folder.rename(aside)
            # Under the lock, whatever lies there was left by a process that died.
            shutil.rmtree(folder, ignore_errors=True)
            if not resumable:
                shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(exist_ok=True)
            try:
                build(aside)
                publish(aside, folder)
            except BaseException as error:
                if not resumable or isinstance(error, DataError):
                    shutil.rmtree(aside, ignore_errors=True)
                raise
    return folder


def scratch(kind: str) -> Path:
    """A new folder beside those of ``kind``, for what only gets its key when it is written."""
    parent = root() / kind
    parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=parent, prefix=".scratch-"))


def publish(aside: Path, folder: Path) -> None:
    """Give a finished folder its name. If another process was faster, its equal folder stays."""
    (aside / _WHOLE).unlink(missing_ok=True)
    sizes = {path.name: path.stat().st_size for path in aside.iterdir()}
    for path in aside.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    (aside / _WHOLE).write_text(json.dumps(sizes))
    try:
        aside.rename(folder)
    except OSError:
        if not _is_whole(folder):
            raise
        shutil.rmtree(aside)


def file_sha256(path: Path) -> str:
    """The file's hash, remembered for as long as its size and time of change stay the same."""
    status = path.stat()
    place = str(path.resolve())
    state: list[object] = [place, status.st_size, status.st_mtime_ns]
    note = root() / "hashes" / hashlib.sha256(place.encode()).hexdigest()[:32]
    if remembered := _remembered(note, state):
        return remembered
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    note.parent.mkdir(parents=True, exist_ok=True)
    aside = note.with_name(f".{note.name}.{os.getpid()}")
    aside.write_text(json.dumps([*state, digest.hexdigest()]))
    aside.replace(note)
    return digest.hexdigest()


def _remembered(note: Path, state: list[object]) -> str | None:
    """The hash that a note has of a file in this state.

    A note that is missing or no JSON costs one more reading of the file.
    """
    try:
        known = json.loads(note.read_text())
    except (OSError, ValueError):
        return None
    return str(known[3]) if known[:3] == state else None


def _is_whole(folder: Path) -> bool:
    try:
        sizes = json.loads((folder / _WHOLE).read_text())
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False
