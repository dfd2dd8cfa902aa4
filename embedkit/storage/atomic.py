"""Files that are there whole or not at all: written under a hidden name, then renamed."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file; a killed process leaves the file as it was."""
    with written_aside(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write an indented JSON file; a killed process leaves the file as it was."""
    write_text(path, json.dumps(value, indent=2) + "\n")


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Yield a path to write to, and rename what was written to ``path`` if the block succeeds.

    A killed process leaves its unfinished file, ``aside_of(path)``, which the next writer replaces.
    """
    aside = aside_of(path)
    try:
        yield aside
        aside.replace(path)
    except OSError as error:
        if error.errno and error.filename is None:  # A full disk is reported without the file.
            error.filename = str(path)
        raise
    finally:
        aside.unlink(missing_ok=True)


def aside_of(path: Path) -> Path:
    """Return the hidden path beside ``path`` that is written to first."""
    return path.with_name(f".{path.name}.part")


def sync(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on disk.

    On Windows, folders cannot be opened, and files only to be written: there it does not wait.
    """
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
