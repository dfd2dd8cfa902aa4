import os
from pathlib import Path

import numpy as np
import pytest

from embedkit.errors import DataError
from embedkit.mining.blocks import BlockFile

FLOATS = np.dtype(np.float32)


def test_what_was_appended_is_there_after_reopening(tmp_path: Path) -> None:
    BlockFile(tmp_path / "rows", FLOATS, 2).append(np.array([[1, 2], [3, 4]]))
    again = BlockFile(tmp_path / "rows", FLOATS, 2)
    assert len(again) == 2
    again.append(np.array([[5, 6]]))
    assert again.mapped().tolist() == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize("torn", ["rows", "rows.blocks"])
def test_a_block_that_is_half_written_does_not_count(torn: str, tmp_path: Path) -> None:
    BlockFile(tmp_path / "rows", FLOATS, 2).append(np.array([[1, 2]]))
    with (tmp_path / "rows").open("ab") as file:
        file.write(b"\0" * 11)
    if torn == "rows.blocks":
        with (tmp_path / "rows.blocks").open("ab") as file:
            file.write(b"1")
    again = BlockFile(tmp_path / "rows", FLOATS, 2)
    again.append(np.array([[3, 4]]))
    assert again.mapped().tolist() == [[1, 2], [3, 4]]
    assert len(BlockFile(tmp_path / "rows", FLOATS, 2)) == 2


def test_a_file_that_lost_rows_is_refused(tmp_path: Path) -> None:
    BlockFile(tmp_path / "rows", FLOATS, 2).append(np.array([[1, 2], [3, 4]]))
    os.truncate(tmp_path / "rows", 8)
    with pytest.raises(DataError, match="shorter than was written: remove"):
        BlockFile(tmp_path / "rows", FLOATS, 2)


def test_no_rows_can_be_read_too(tmp_path: Path) -> None:
    assert BlockFile(tmp_path / "rows", FLOATS, 3).mapped().shape == (0, 3)
