"""Files that are there whole or not at all."""

import json
import os
import signal
from pathlib import Path

import pytest
from support.interrupted import start

from embedkit.storage.atomic import aside_of, write_json, write_text, written_aside


def _write_and_die(path: Path) -> None:
    with written_aside(path) as aside:
        aside.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_writer_leaves_the_file_and_the_next_one_clears_up(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    write_json(path, {"rows": 1})
    process = start(_write_and_die, path)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert json.loads(path.read_text()) == {"rows": 1}
    assert aside_of(path).read_text() == "half"
    write_text(path, "grün\n")
    assert path.read_bytes() == "grün\n".encode()
    assert list(tmp_path.iterdir()) == [path]


def _fail(aside: Path) -> None:
    aside.write_bytes(b"new")
    raise OSError("no space")


def test_a_full_disk_is_reported_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    aside_of(path).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_text(path, "b")
    assert caught.value.filename == str(path)
    assert not path.exists()


def test_a_block_that_fails_leaves_the_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="no space"), written_aside(path) as aside:
        _fail(aside)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
