import hashlib
import os
import signal
import warnings
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from support.ranks import run_on_ranks
from torch.distributed import barrier

from embedkit.evaluation.encoding.vector_cache import VectorCache, keys_of
from embedkit.storage.blocks import KeyedBlock

MODEL = "0123"
EIGHT = KeyedBlock.size(8, 4)
"""Bytes of a file with eight vectors of four dimensions."""


def texts(first: int, last: int) -> list[str]:
    return [f"text {number}" for number in range(first, last)]


def vectors(first: int, last: int) -> np.ndarray:
    return np.array([[number, 1, 2, 3] for number in range(first, last)], dtype=np.float32)


def keep(cache: VectorCache, first: int, last: int, prompt: str = "") -> None:
    cache.keep(MODEL, prompt, keys_of(texts(first, last)), vectors(first, last))


def held(cache: VectorCache, first: int, last: int, prompt: str = "") -> list[float]:
    """The numbers of the texts that are found."""
    found, known = cache.find(MODEL, prompt, keys_of(texts(first, last)))
    expected = vectors(first, last)[found]
    assert not len(known) or np.array_equal(known, expected)
    return [float(number) for number in np.arange(first, last)[found]]


@pytest.fixture
def cache(tmp_path: Path) -> VectorCache:
    return VectorCache(tmp_path, max_bytes=10**6)


def test_an_empty_cache_holds_nothing(cache: VectorCache) -> None:
    assert held(cache, 0, 3) == []
    assert held(cache, 0, 0) == []


def test_what_was_kept_is_found_again_in_any_order(cache: VectorCache, tmp_path: Path) -> None:
    keep(cache, 2, 5)
    keep(cache, 7, 9)
    assert held(VectorCache(tmp_path, 10**6), 0, 10) == [2, 3, 4, 7, 8]
    found, known = cache.find(MODEL, "", keys_of(["text 8", "no", "text 2", "text 8"]))
    assert found.tolist() == [True, False, True, True]
    assert known[:, 0].tolist() == [8, 2, 8]


def test_keys_that_agree_in_half_are_not_taken_for_each_other(cache: VectorCache) -> None:
    key = keys_of(["text 0"])
    cache.keep(MODEL, "", key, vectors(0, 1))
    assert not cache.find(MODEL, "", key + np.array([[0, 1]], dtype=np.uint64))[0].any()
    assert cache.find(MODEL, "", key)[0].all()


def test_another_prompt_or_model_finds_nothing(cache: VectorCache) -> None:
    keep(cache, 0, 3, prompt="query: ")
    assert held(cache, 0, 3) == []
    assert not cache.find("4567", "query: ", keys_of(texts(0, 3)))[0].any()


@pytest.fixture
def file(cache: VectorCache, tmp_path: Path) -> Path:
    """The file of the texts 0 to 3, beside that of 3 to 5."""
    keep(cache, 0, 3)
    (first,) = files_in(tmp_path)
    keep(cache, 3, 5)
    return first


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if not path.name.startswith(".")]


def check_that_it_is_replaced(damaged: Path) -> None:
    cache = VectorCache(damaged.parent, max_bytes=10**6)
    with pytest.warns(UserWarning, match=f"{damaged}: is damaged, so its texts are encoded again"):
        assert held(cache, 0, 9) == [3, 4]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert held(cache, 0, 9) == [3, 4]
        keep(cache, 0, 3)
        for each in (cache, VectorCache(damaged.parent, 10**6)):
            assert held(each, 0, 9) == [0, 1, 2, 3, 4]
    assert damaged in files_in(damaged.parent)


@pytest.mark.slow
def test_a_file_of_which_any_bit_is_flipped_is_as_if_it_were_absent(file: Path) -> None:
    whole = file.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        file.write_bytes(damaged)
        check_that_it_is_replaced(file)
        assert file.read_bytes() == whole


@pytest.mark.slow
def test_a_file_of_any_other_length_is_as_if_it_were_absent(file: Path) -> None:
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        check_that_it_is_replaced(file)
    file.write_bytes(whole + bytes(8))
    check_that_it_is_replaced(file)


def test_a_file_that_the_disk_cannot_read_is_as_if_it_were_absent(file: Path) -> None:
    file.unlink()
    # Reading the first byte of its own memory, which is not mapped, a process gets EIO.
    file.symlink_to("/proc/self/mem")
    check_that_it_is_replaced(file)


def test_texts_of_a_damaged_file_are_found_in_another(cache: VectorCache, file: Path) -> None:
    keep(cache, 1, 4)
    file.write_bytes(b"")
    with pytest.warns(UserWarning, match="is damaged"):
        assert held(cache, 0, 9) == [1, 2, 3, 4]


def test_vectors_are_verified_when_they_are_first_read(cache: VectorCache, file: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    # A file without a text that is wanted is not read for its vectors.
    assert held(cache, 3, 5) == [3, 4]
    file.write_bytes(whole)
    assert held(cache, 0, 9) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("place", ["os.fsync", "pathlib.Path.replace"])
def test_what_a_kill_has_cut_short_is_not_there(place: str, tmp_path: Path) -> None:
    keep(VectorCache(tmp_path, 10**6), 3, 5)
    process = get_context("fork").Process(target=keep_and_die, args=(tmp_path, place))
    process.start()
    process.join(20)
    assert process.exitcode == -signal.SIGKILL
    again = VectorCache(tmp_path, 10**6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert held(again, 0, 9) == [3, 4]
        keep(again, 0, 3)
        assert held(again, 0, 9) == [0, 1, 2, 3, 4]


def keep_and_die(folder: Path, place: str) -> None:
    def die(*_args: object) -> None:
        signal.raise_signal(signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, die)
        keep(VectorCache(folder, 10**6), 0, 3)


def test_files_of_the_format_before_are_not_trusted_and_make_room(tmp_path: Path) -> None:
    name = hashlib.sha256(f"{MODEL}\n".encode()).hexdigest()[:32]
    head = np.array([4, 0], dtype=np.uint64).tobytes()
    (tmp_path / f"{name}.keys").write_bytes(head + keys_of(texts(0, 8)).tobytes())
    (tmp_path / f"{name}.vectors").write_bytes(vectors(0, 8).tobytes())
    (tmp_path / "mined").mkdir()
    (tmp_path / "notes.txt").write_bytes(bytes(1000))
    cache = VectorCache(tmp_path, max_bytes=3 * EIGHT)
    assert held(cache, 0, 8) == []
    for first in (0, 8, 16):
        keep(cache, first, first + 8)
    assert held(cache, 0, 24) == list(range(24))
    assert {path.suffix for path in files_in(tmp_path)} == {".block", "", ".txt"}


def test_the_vectors_used_longest_ago_make_room(tmp_path: Path) -> None:
    cache = VectorCache(tmp_path, max_bytes=3 * EIGHT - 1)
    for number, prompt in enumerate(("a", "b")):
        keep(cache, 0, 8, prompt)
        for path in files_in(tmp_path):
            os.utime(path, (number, number))
    held(cache, 0, 8, "a")
    keep(cache, 0, 8, "c")
    assert [len(held(cache, 0, 8, prompt)) for prompt in "abc"] == [8, 0, 8]
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert sum(sizes) == 2 * EIGHT


def test_vectors_that_fill_the_cache_alone_stay(tmp_path: Path) -> None:
    cache = VectorCache(tmp_path, max_bytes=EIGHT)
    keep(cache, 0, 8)
    keep(cache, 8, 9)
    assert held(cache, 0, 9) == list(range(8))


def test_what_another_process_has_dropped_is_begun_anew(tmp_path: Path) -> None:
    mine, other = (VectorCache(tmp_path, EIGHT) for _ in range(2))
    keep(mine, 0, 8)
    assert len(held(mine, 0, 8)) == 8
    keep(other, 0, 8, "another prompt")
    assert held(mine, 0, 8) == []
    keep(mine, 0, 4)
    assert held(mine, 0, 8) == [0, 1, 2, 3]


def test_two_processes_may_add_vectors_of_one_model(tmp_path: Path) -> None:
    run_on_ranks(2, add_in_turns, tmp_path)
    assert held(VectorCache(tmp_path, 10**6), 0, 200) == list(range(200))


def add_in_turns(folder: Path) -> None:
    cache = VectorCache(folder, max_bytes=10**6)
    barrier()
    for first in range(100 * int(os.environ["RANK"]), 100 * int(os.environ["RANK"]) + 100, 2):
        keep(cache, first, first + 2)
        assert len(held(cache, first, first + 2)) == 2


def test_two_processes_may_keep_the_same_texts(tmp_path: Path) -> None:
    run_on_ranks(2, keep_the_same, tmp_path)
    assert held(VectorCache(tmp_path, 10**6), 0, 40) == list(range(40))
    assert [path.stat().st_size for path in files_in(tmp_path)] == 5 * [EIGHT]


def keep_the_same(folder: Path) -> None:
    cache = VectorCache(folder, max_bytes=10**6)
    for first in 4 * [*range(0, 40, 8)]:
        barrier()
        keep(cache, first, first + 8)
        assert held(cache, first, first + 8) == list(range(first, first + 8))
