import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.ranks import run_on_ranks
from torch.distributed import barrier

from embedkit.storage import blocks
from embedkit.storage.blocks import BlockFile

FLOATS = np.dtype(np.float32)
FIRST, SECOND, LAST = (np.array(rows) for rows in ([[1, 2], [3, 4]], [[5, 6], [7, 8]], [[9, 10]]))


def five_rows(folder: Path, block: int = 2) -> BlockFile:
    return BlockFile(folder / "rows", FLOATS, rows=5, width=2, block=block)


def content(folder: Path) -> NDArray[Any]:
    return five_rows(folder).mapped()


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
    again.write(2, LAST)
    assert content(tmp_path)[:4].tolist() == [*FIRST.tolist(), *SECOND.tolist()]


def test_blocks_of_another_size_are_not_taken_for_these(tmp_path: Path) -> None:
    five_rows(tmp_path, block=3).write(0, np.ones((3, 2)))
    assert five_rows(tmp_path, block=4).missing() == [0, 1]


def written(folder: Path) -> None:
    for block, rows in enumerate((FIRST, SECOND, LAST)):
        five_rows(folder).write(block, rows)


def mended(folder: Path) -> list[int]:
    """The blocks that were missing, which are there after this call."""
    file = five_rows(folder)
    missing = file.missing()
    for block in missing:
        file.write(block, (FIRST, SECOND, LAST)[block])
    assert five_rows(folder).is_whole()
    assert content(folder).tolist() == [*FIRST.tolist(), *SECOND.tolist(), *LAST.tolist()]
    return missing


def test_a_block_of_which_any_bit_is_flipped_is_missing_and_the_others_are_not(
    tmp_path: Path,
) -> None:
    written(tmp_path)
    for name, size in (("rows", 16), ("rows.digests-2", 32)):
        whole = (tmp_path / name).read_bytes()
        for place in range(len(whole)):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << place % 8
            (tmp_path / name).write_bytes(damaged)
            assert not five_rows(tmp_path).is_whole()
            with pytest.warns(UserWarning, match="rows: 1 of 3 blocks are damaged, so these are"):
                assert mended(tmp_path) == [place // size]


@pytest.mark.filterwarnings("ignore:.*blocks are damaged")
@pytest.mark.parametrize("name", ["rows", "rows.digests-2"])
def test_the_blocks_that_a_cut_reaches_are_missing(name: str, tmp_path: Path) -> None:
    written(tmp_path)
    size = (tmp_path / name).stat().st_size
    for length in range(size):
        os.truncate(tmp_path / name, length)
        reached = length * 5 // size // 2 if name == "rows" else length * 3 // size
        assert mended(tmp_path) == list(range(reached, 3))


@pytest.mark.filterwarnings("ignore:.*blocks are damaged")
def test_a_file_that_is_gone_is_written_again(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "rows").unlink()
    assert mended(tmp_path) == [0, 1, 2]


def test_rows_of_another_block_are_not_taken_for_its_own(tmp_path: Path) -> None:
    written(tmp_path)
    for name, size in (("rows", 16), ("rows.digests-2", 32)):
        whole = (tmp_path / name).read_bytes()
        first, second, last = whole[:size], whole[size : 2 * size], whole[2 * size :]
        (tmp_path / name).write_bytes(second + first + last)
    with pytest.warns(UserWarning, match="2 of 3 blocks are damaged"):
        assert mended(tmp_path) == [0, 1]


def test_what_another_process_has_written_is_verified_once(tmp_path: Path) -> None:
    written(tmp_path)
    file = five_rows(tmp_path)
    assert file.done() == 5
    (tmp_path / "rows").unlink()
    assert file.missing() == []


def test_processes_that_write_the_same_blocks_leave_them_whole(tmp_path: Path) -> None:
    run_on_ranks(2, write_all, tmp_path)
    assert five_rows(tmp_path).missing() == []
    assert content(tmp_path).tolist() == [*FIRST.tolist(), *SECOND.tolist(), *LAST.tolist()]


def write_all(folder: Path) -> None:
    barrier()
    for _ in range(20):
        written(folder)


def test_no_rows_can_be_read_too(tmp_path: Path) -> None:
    file = BlockFile(tmp_path / "rows", FLOATS, rows=0, width=3, block=2)
    assert file.missing() == []
    assert file.mapped().shape == (0, 3)


def test_a_file_without_a_number_of_rows_grows_by_whole_blocks(tmp_path: Path) -> None:
    def opened() -> BlockFile:
        return BlockFile(tmp_path / "rows", FLOATS, width=2, block=2)

    assert opened().rows == 0
    opened().write(0, np.concatenate([FIRST, SECOND]))
    opened().write(2, FIRST)
    assert opened().rows == 6
    with pytest.raises(AssertionError):
        opened().write(3, LAST)
    assert opened().is_whole()
    blocks_read = [opened().read(block) for block in range(4)]
    assert [rows.tolist() if rows is not None else None for rows in blocks_read] == [
        FIRST.tolist(),
        SECOND.tolist(),
        FIRST.tolist(),
        None,
    ]
    # A write that was cut short is written over.
    os.truncate(tmp_path / "rows", 33)
    assert opened().rows == 4
    assert opened().read(2) is None
    opened().write(2, FIRST)
    assert opened().read(2) is not None


def test_a_forgotten_block_is_as_one_that_was_never_written(tmp_path: Path) -> None:
    file = five_rows(tmp_path)
    for block, rows in enumerate((FIRST, SECOND, LAST)):
        file.write(block, rows)
    file.forget([1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert file.missing() == five_rows(tmp_path).missing() == [1]
