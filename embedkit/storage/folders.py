"""Folders that embedkit writes whole and marks, so that it replaces nothing but its own work.

A folder's marker, ``embedkit.json``, says what the folder holds, and has the SHA-256 of each file
that embedkit wrote there.
"""

import errno
import glob
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from embedkit.errors import UserError, some
from embedkit.storage.atomic import write_json, write_text
from embedkit.storage.hashing import sha256_of_file

Kind = Literal["a model", "mined pairs", "held-out tasks"]
"""Contents that a folder may be marked with."""

MARKER = "embedkit.json"


@contextmanager
def writing_to(folder: Path, remedy: str = "choose another --output") -> Iterator[None]:
    """Report an error of the file system in a block that makes ``folder`` as the user's mistake.

    Raises:
        UserError: names the folder, the reason and ``remedy``.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}); {remedy}") from None


def check_writable(folder: Path) -> None:
    """Verify that ``folder`` can be made, or that files can be made in it; leave nothing behind.

    Raises:
        UserError: they cannot.
    """
    with writing_to(folder):
        if folder.is_dir():
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        # Permissions alone do not tell: they allow root to write in /proc, where nobody can.
        nearest = next(path for path in folder.absolute().parents if path.exists())
        with tempfile.TemporaryDirectory(prefix=".embedkit-", dir=nearest):
            pass


def check_output(folder: Path, kind: Kind, *, overwrite: bool) -> None:
    """Verify that ``folder`` is new or empty, or with ``overwrite`` that it may be replaced.

    Raises:
        UserError: it is neither, or cannot be written.
    """
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise UserError(
            f"{folder}: is not empty; replace an earlier export with --overwrite, or choose "
            "another --output"
        )
    check_replaceable(folder, kind)


def check_replaceable(folder: Path, kind: Kind) -> None:
    """Verify that ``folder`` can be written, and that replacing it loses only embedkit's own work.

    A folder may be replaced if it is missing or empty, or if its marker says ``kind`` and every
    file in it is as embedkit wrote it.

    Raises:
        UserError: the folder cannot be written, or a replacement would lose what is named.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; choose another --output")
    check_writable(folder)
    files = _files(folder)
    if not files:
        return
    marker = _read_marker(folder)
    if marker is None:
        raise UserError(
            f"{folder}: is not replaced, since it holds no {MARKER} that marks it as written by "
            "embedkit; delete it yourself, or choose another --output"
        )
    if marker["holds"] != kind:
        raise UserError(
            f"{folder}: is not replaced, since it holds {marker['holds']} and not {kind}; choose "
            "another --output"
        )
    # A link is a user's, even where it leads to what embedkit wrote.
    regular = {name for name, path in files.items() if path.is_file() and not path.is_symlink()}
    hashes = {name: sha256_of_file(files[name]) for name in regular & marker["sha256"].keys()}
    written = {name for name, digest in hashes.items() if digest == marker["sha256"][name]}
    if foreign := sorted(files.keys() - written - {MARKER}):
        raise UserError(
            f"{folder}: is not replaced, since embedkit did not write these files, or they were "
            f"changed: {some(foreign)}; move them elsewhere, or choose another "
            "--output"
        )


@contextmanager
def whole_folder(folder: Path, kind: Kind) -> Iterator[Path]:
    """Lend a folder that is marked and takes the place of ``folder`` once the block succeeds.

    Raises:
        UserError: ``folder`` may not be replaced; see ``check_replaceable``.
    """
    final = folder.resolve()
    with writing_to(folder):
        final.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{final.name}.embedkit-part-"
    # A killed process leaves its unfinished folder behind.
    for left in final.parent.glob(f"{glob.escape(prefix)}*"):
        shutil.rmtree(left, ignore_errors=True)
    # Two processes must not fill one folder, so that its name is unique.
    aside = Path(tempfile.mkdtemp(prefix=prefix, dir=final.parent))
    try:
        yield aside
        hashes = {name: sha256_of_file(path) for name, path in _files(aside).items()}
        write_json(aside / MARKER, {"written_by": "embedkit", "holds": kind, "sha256": hashes})
        # Only the owner could read the temporary folder, and the weights written by safetensors.
        mask = os.umask(0o077)
        os.umask(mask)
        for path in (aside, *aside.rglob("*")):
            path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)
        check_replaceable(folder, kind)
        with set_aside(folder) as final:
            aside.rename(final)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def rewrite(folder: Path, name: str, text: str) -> None:
    """Write a text file of a marked folder anew, so that it still counts as embedkit's."""
    path = folder / name
    write_text(path, text)
    if marker := _read_marker(folder):
        marker["sha256"][name] = sha256_of_file(path)
        write_json(folder / MARKER, marker)


@contextmanager
def set_aside(folder: Path) -> Iterator[Path]:
    """Move ``folder`` away and lend its path; delete it if the block succeeds, else move it back.

    The caller has to know that ``folder`` may be deleted. A process that is killed in between
    leaves it as ``.<name>.embedkit-replaced``, which the next call puts back first.
    """
    final = folder.resolve()
    older = recover(final)
    if final.exists():
        try:
            final.rename(older)
        except OSError as error:
            raise UserError(
                f"{folder}: cannot be replaced ({error.strerror}); choose another --output"
            ) from None
    try:
        yield final
    except BaseException:
        if older.exists() and not final.exists():
            older.rename(final)
        raise
    shutil.rmtree(older, ignore_errors=True)


def recover(folder: Path) -> Path:
    """Finish or undo a replacement of ``folder`` during which a process was killed.

    Return the path at which a replacement keeps the older folder, which is free now.
    """
    older = folder.with_name(f".{folder.name}.embedkit-replaced")
    if folder.exists():
        shutil.rmtree(older, ignore_errors=True)
    elif older.exists():
        older.rename(folder)
    return older


def _files(folder: Path) -> dict[str, Path]:
    """Return all files and links below ``folder`` by their relative paths, in order."""
    return {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or not path.is_dir()
    }


def _read_marker(folder: Path) -> dict[str, Any] | None:
    """Return the marker of ``folder``, or ``None`` where there is none of embedkit's."""
    with suppress(OSError, ValueError):
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        known = isinstance(marker, dict) and marker.keys() == {"written_by", "holds", "sha256"}
        if known and isinstance(marker["sha256"], dict):
            return marker
    return None
