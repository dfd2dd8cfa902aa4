import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from embedkit.errors import DataError
from embedkit.storage import blocks
from embedkit.storage.blocks import BlockFile

FLOATS = np.dtype(np.float32)
FIRST, SECOND, LAST = (np.array(rows) for rows in ([[1, 2], [3, 4]], [[5, 6], [7, 8]], [[9, 10]]))


def five_rows(folder: Path, block: int = 2) -> BlockFile:
    return BlockFile(folder / "rows", FLOATS, rows=5, width=2, block=block)


def content(folder: Path) -> NDArray[Any]:
    return blocks.mapped(folder / "rows", FLOATS, rows=5, width=2)


def test_blocks_may_be_written_in_any_order_and_by_several(tmp_path: Path) -> None:
    one, other = five_rows(tmp_path), five_rows(tmp_path)
    one.write(2, LAST)
    other.write(0, FIRST)
    assert five_rows(tmp_path).missing() == [1]
    assert five_rows(tmp_path).done() == 3
    one.write(1, SECOND)
    assert five_rows(tmp_path).missing() == []
    assert content(tmp_path).tolist() == [*FIRST.tolist(), *SECOND.tolist(), *LAST.tolist()]


def test_a_block_has_its_size_and_the_last_what_is_left(tmp_path: Path) -> None:
    file = five_rows(tmp_path)
    assert [file.rows_of(block).tolist() for block in file.missing()] == [[0, 1], [2, 3], [4]]
    with pytest.raises(AssertionError):
        file.write(2, FIRST)


def test_a_block_that_is_half_written_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = five_rows(tmp_path)
    file.write(0, FIRST)
    put = blocks._put

    def first_alone(path: Path, offset: int, data: bytes) -> None:
        if path.name == "rows":
            put(path, offset, data[:5])

    monkeypatch.setattr(blocks, "_put", first_alone)
    file.write(1, SECOND)
    monkeypatch.undo()
    again = five_rows(tmp_path)
    assert again.missing() == [1, 2]
    again.write(1, SECOND)
    assert content(tmp_path)[:4].tolist() == [*FIRST.tolist(), *SECOND.tolist()]


def test_blocks_of_another_size_are_not_taken_for_these(tmp_path: Path) -> None:
    five_rows(tmp_path, block=3).write(0, np.ones((3, 2)))
    assert five_rows(tmp_path, block=4).missing() == [0, 1]


@pytest.mark.parametrize("size", [8, 48])
def test_a_file_whose_size_has_changed_is_refused(size: int, tmp_path: Path) -> None:
    five_rows(tmp_path).write(0, FIRST)
    os.truncate(tmp_path / "rows", size)
    with pytest.raises(DataError, match="is not as it was written: remove"):
        five_rows(tmp_path)


def test_a_file_that_is_gone_is_refused(tmp_path: Path) -> None:
    five_rows(tmp_path).write(0, FIRST)
    (tmp_path / "rows").unlink()
    with pytest.raises(DataError, match="is not as it was written: remove"):
        five_rows(tmp_path)


def test_a_file_that_was_being_made_is_made(tmp_path: Path) -> None:
    five_rows(tmp_path)
    os.truncate(tmp_path / "rows", 0)
    assert five_rows(tmp_path).missing() == [0, 1, 2]
    assert content(tmp_path).shape == (5, 2)


def test_no_rows_can_be_read_too(tmp_path: Path) -> None:
    assert BlockFile(tmp_path / "rows", FLOATS, rows=0, width=3, block=2).missing() == []
    assert blocks.mapped(tmp_path / "rows", FLOATS, rows=0, width=3).shape == (0, 3)
