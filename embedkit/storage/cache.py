"""Folders and file hashes under ``$EMBEDKIT_CACHE``: written once, whole, and never changed."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from embedkit.errors import DataError
from embedkit.storage.atomic import sync, written_aside
from embedkit.storage.hashing import sha256_of_file, sha256_of_text

_WHOLE = "whole"


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


@contextmanager
def scratch(kind: str) -> Iterator[Path]:
    """Lend a folder beside those of ``kind``, for what only gets its key when it is written.

    It is deleted after the block, unless it was published.
    """
    parent = root() / kind
    parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=parent, prefix=".scratch-"))
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def publish(aside: Path, folder: Path) -> None:
    """Give a finished folder its name. If another process was faster, its equal folder stays."""
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
    """The file's hash, remembered for as long as its size and time of change stay the same."""
    status = path.stat()
    place = str(path.resolve())
    state: list[object] = [place, status.st_size, status.st_mtime_ns]
    note = root() / "hashes" / sha256_of_text(place)[:32]
    if remembered := _remembered(note, state):
        return remembered
    digest = sha256_of_file(path)
    note.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may note the same hash at a time.
    with written_aside(note, aside=note.with_name(f".{note.name}.{os.getpid()}")) as aside:
        aside.write_text(json.dumps([*state, digest]))
    return digest


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
