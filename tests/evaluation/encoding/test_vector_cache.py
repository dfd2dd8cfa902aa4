import os
from pathlib import Path

import numpy as np
import pytest
from support.ranks import run_on_ranks
from torch.distributed import barrier

from embedkit.evaluation.encoding.vector_cache import VectorCache, keys_of

MODEL = "0123"
PAIR_OF_EIGHT = 16 + 8 * (16 + 4 * 4)
"""Bytes of a pair of files with eight vectors of four dimensions."""


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


@pytest.mark.parametrize("lost", ["keys", "vectors"])
def test_what_a_kill_has_cut_short_is_written_over(
    cache: VectorCache, tmp_path: Path, lost: str
) -> None:
    keep(cache, 0, 3)
    (keys,) = tmp_path.glob("*.keys")
    # A kill comes between the vectors and their keys, or within either.
    if lost == "keys":
        keys.write_bytes(keys.read_bytes()[:-5])
    else:
        stored = keys.with_suffix(".vectors")
        stored.write_bytes(stored.read_bytes() + b"half a vector")
    rest = [0, 1] if lost == "keys" else [0, 1, 2]
    again = VectorCache(tmp_path, 10**6)
    assert held(again, 0, 9) == rest
    keep(again, 5, 8)
    assert held(again, 0, 9) == [*rest, 5, 6, 7]


def test_the_pair_used_longest_ago_makes_room(tmp_path: Path) -> None:
    cache = VectorCache(tmp_path, max_bytes=3 * PAIR_OF_EIGHT - 1)
    for number, prompt in enumerate(("a", "b")):
        keep(cache, 0, 8, prompt)
        for path in tmp_path.glob("*.keys"):
            os.utime(path, (number, number))
    held(cache, 0, 8, "a")
    keep(cache, 0, 8, "c")
    assert [len(held(cache, 0, 8, prompt)) for prompt in "abc"] == [8, 0, 8]
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert sum(sizes) == 2 * PAIR_OF_EIGHT


def test_a_pair_that_fills_the_cache_alone_keeps_what_it_has(tmp_path: Path) -> None:
    cache = VectorCache(tmp_path, max_bytes=PAIR_OF_EIGHT)
    keep(cache, 0, 8)
    keep(cache, 8, 9)
    assert held(cache, 0, 9) == list(range(8))


def test_a_pair_that_another_process_has_dropped_is_begun_anew(tmp_path: Path) -> None:
    mine, other = (VectorCache(tmp_path, PAIR_OF_EIGHT) for _ in range(2))
    keep(mine, 0, 8)
    assert len(held(mine, 0, 8)) == 8
    keep(other, 0, 8, "another prompt")
    assert held(mine, 0, 8) == []
    keep(mine, 0, 4)
    assert held(mine, 0, 8) == [0, 1, 2, 3]


def test_two_processes_may_add_to_one_pair(tmp_path: Path) -> None:
    run_on_ranks(2, add_in_turns, tmp_path)
    assert held(VectorCache(tmp_path, 10**6), 0, 200) == list(range(200))


def add_in_turns(folder: Path) -> None:
    cache = VectorCache(folder, max_bytes=10**6)
    barrier()
    for first in range(100 * int(os.environ["RANK"]), 100 * int(os.environ["RANK"]) + 100, 2):
        keep(cache, first, first + 2)
        assert len(held(cache, first, first + 2)) == 2
