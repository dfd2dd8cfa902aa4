import hashlib
import os
import signal
import warnings
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from support.ranks import run_on_ranks
from torch.distributed import barrier

from embedkit.evaluation.encoding import vector_cache
from embedkit.evaluation.encoding.vector_cache import VectorCache, keys_of

MODEL = "0123"
EIGHT = 8 * (16 + 4 * 4) + 2 * 2 * 32
"""Bytes of two blocks of keys, of vectors of four dimensions, and of their digests."""


@pytest.fixture(autouse=True)
def blocks_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_cache, "_BLOCK", 4)


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
def group(cache: VectorCache, tmp_path: Path) -> Path:
    """The folder of the texts 0 to 3 in one block, and 3 to 5 in another."""
    keep(cache, 0, 3)
    keep(cache, 3, 5)
    (folder,) = groups_in(tmp_path)
    return folder


def groups_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.texts"))


FILES = ("keys", "keys.digests-4", "4.vectors", "4.vectors.digests-4")


def check_that_it_is_replaced(group: Path, lost: set[int], *, warned: bool = True) -> None:
    """No text has another's vector, those of damaged blocks are lost, and all can be kept again."""
    cache = VectorCache(group.parent, max_bytes=10**6)
    left = [number for number in range(5) if number not in lost]
    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always")
        assert held(cache, 0, 9) == left
    assert any("damaged" in str(remark.message) for remark in remarks) == warned
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert held(VectorCache(group.parent, 10**6), 0, 9) == left
        keep(cache, 0, 5)
        for each in (cache, VectorCache(group.parent, 10**6)):
            assert held(each, 0, 9) == [0, 1, 2, 3, 4]


def restore(group: Path, content: Mapping[str, bytes]) -> None:
    for path in group.iterdir():
        path.unlink()
    for name, data in content.items():
        (group / name).write_bytes(data)


@pytest.mark.slow
def test_a_block_of_which_any_bit_is_flipped_is_as_if_it_were_absent(group: Path) -> None:
    whole = {name: (group / name).read_bytes() for name in FILES}
    for name, content in whole.items():
        for place in range(0, len(content), 3):
            damaged = bytearray(content)
            damaged[place] ^= 1 << place % 8
            restore(group, {**whole, name: bytes(damaged)})
            first = place < len(content) // 2
            check_that_it_is_replaced(group, {0, 1, 2} if first else {3, 4})


@pytest.mark.slow
def test_the_blocks_that_a_cut_reaches_are_as_if_they_were_absent(group: Path) -> None:
    whole = {name: (group / name).read_bytes() for name in FILES}
    for name, content in whole.items():
        for length in range(0, len(content), 4):
            restore(group, {**whole, name: content[:length]})
            lost = set(range(5)) if length < len(content) // 2 else {3, 4}
            # Blocks of keys that are cut off are as if they had never been written.
            silent = name == "keys"
            if name.endswith("digests-4"):
                silent = length in (0, 32) and name.startswith("keys")
            check_that_it_is_replaced(group, lost, warned=not silent)


@pytest.mark.parametrize("name", FILES)
def test_a_group_without_one_of_its_files_is_as_if_it_were_absent(group: Path, name: str) -> None:
    (group / name).unlink()
    check_that_it_is_replaced(group, set(range(5)), warned=name.startswith("4"))


@pytest.mark.parametrize("name", ["keys.digests-4", "4.vectors"])
def test_what_the_disk_cannot_read_is_not_found(group: Path, name: str) -> None:
    (group / name).unlink()
    # Reading the first byte of its own memory, which is not mapped, a process gets EIO.
    (group / name).symlink_to("/proc/self/mem")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with suppress(OSError):
            assert held(VectorCache(group.parent, max_bytes=10**6), 0, 9) == []


def test_texts_of_a_damaged_block_are_found_in_another(cache: VectorCache, group: Path) -> None:
    keep(cache, 1, 4)
    content = bytearray((group / "4.vectors").read_bytes())
    content[0] ^= 1
    (group / "4.vectors").write_bytes(content)
    with pytest.warns(UserWarning, match=f"{group}: 1 blocks are damaged, so their texts are enc"):
        assert held(cache, 0, 9) == [1, 2, 3, 4]


def test_only_blocks_of_texts_that_are_asked_for_are_read(cache: VectorCache, group: Path) -> None:
    whole = (group / "4.vectors").read_bytes()
    (group / "4.vectors").write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    assert held(cache, 3, 5) == [3, 4]
    (group / "4.vectors").write_bytes(whole)
    assert held(cache, 0, 9) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("writes", range(4))
def test_what_a_kill_has_cut_short_is_not_there(writes: int, tmp_path: Path) -> None:
    keep(VectorCache(tmp_path, 10**6), 3, 5)
    process = get_context("fork").Process(target=keep_and_die, args=(tmp_path, writes))
    process.start()
    process.join(20)
    assert process.exitcode == -signal.SIGKILL
    again = VectorCache(tmp_path, 10**6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        there = [3, 4] if writes < 3 else [0, 1, 2, 3, 4]
        assert held(again, 0, 9) == there
        keep(again, 0, 3)
        assert held(again, 0, 9) == [0, 1, 2, 3, 4]


def keep_and_die(folder: Path, writes: int) -> None:
    """Add texts and die when so many writes were done, and another is on its way to the disk."""
    left = writes

    def die(_file: int) -> None:
        nonlocal left
        if left == 0:
            signal.raise_signal(signal.SIGKILL)
        left -= 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", die)
        keep(VectorCache(folder, 10**6), 0, 3)


def test_files_of_the_format_before_are_not_trusted_and_make_room(tmp_path: Path) -> None:
    name = hashlib.sha256(f"{MODEL}\n".encode()).hexdigest()[:32]
    head = np.array([4, 0], dtype=np.uint64).tobytes()
    (tmp_path / f"{name}.keys").write_bytes(head + keys_of(texts(0, 8)).tobytes())
    (tmp_path / f"{name}.vectors").write_bytes(vectors(0, 8).tobytes())
    (tmp_path / f"{name}.0123.block").write_bytes(bytes(500))
    (tmp_path / "mined").mkdir()
    (tmp_path / "notes.txt").write_bytes(bytes(1000))
    cache = VectorCache(tmp_path, max_bytes=3 * EIGHT)
    assert held(cache, 0, 8) == []
    for first in (0, 8, 16):
        keep(cache, first, first + 8)
    assert held(cache, 0, 24) == list(range(24))
    names = {path.suffix or path.name for path in tmp_path.iterdir()}
    assert names == {".lock", ".texts", "mined", ".txt"}


def test_the_vectors_used_longest_ago_make_room(tmp_path: Path) -> None:
    cache = VectorCache(tmp_path, max_bytes=2 * EIGHT + EIGHT // 2)
    for number, prompt in enumerate(("a", "b")):
        keep(cache, 0, 8, prompt)
        for path in groups_in(tmp_path):
            os.utime(path, (number, number))
    held(cache, 0, 8, "a")
    keep(cache, 0, 8, "c")
    assert [len(held(cache, 0, 8, prompt)) for prompt in "abc"] == [8, 0, 8]
    sizes = [path.stat().st_size for path in tmp_path.glob("*.texts/*")]
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


def keep_the_same(folder: Path) -> None:
    cache = VectorCache(folder, max_bytes=10**6)
    for first in 4 * [*range(0, 40, 8)]:
        barrier()
        keep(cache, first, first + 8)
        assert held(cache, first, first + 8) == list(range(first, first + 8))
