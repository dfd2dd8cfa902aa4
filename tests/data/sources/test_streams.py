"""Rows that came before are dropped, in little memory."""

import random
import tracemalloc

import pytest

from embedkit.data.sources.hash_set import HashSet
from embedkit.data.sources.streams import distinct


def test_the_first_of_equal_items_stays_in_its_place() -> None:
    draw = random.Random(0)
    numbers = [draw.randrange(5000) for _ in range(20_000)]
    assert list(distinct(numbers, str)) == list(dict.fromkeys(numbers))


def test_hashes_that_want_one_slot_are_told_apart() -> None:
    # All of them begin their search at the last slot of tables of up to 65,536 slots.
    hashes = [(number << 16) - 1 for number in range(1, 2000)]
    known = HashSet()
    assert all(map(known.add, hashes))
    assert not any(map(known.add, hashes))
    assert len(known) == len(hashes)


@pytest.mark.parametrize("hash_", [0, 1, 2**64 - 1])
def test_a_hash_at_the_limits_is_known_once_added(hash_: int) -> None:
    known = HashSet()
    assert [known.add(hash_), known.add(hash_)] == [True, False]


def test_a_hash_takes_at_most_24_bytes() -> None:
    known, draw = HashSet(), random.Random(0)
    tracemalloc.start()
    try:
        for _ in range(100_000):
            known.add(draw.getrandbits(64))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 8 < held / len(known) < 25
