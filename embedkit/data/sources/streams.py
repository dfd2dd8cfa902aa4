"""Gathers streams of items in blocks, and drops items that came before."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from embedkit.data.sources.hash_set import HashSet

ItemT = TypeVar("ItemT")


def blocks_of(
    items: Iterable[ItemT], size: Callable[[ItemT], int], limit: int
) -> Iterator[list[ItemT]]:
    """Yield items in blocks, each of which ends where the sizes in it add up to ``limit``."""
    block: list[ItemT] = []
    total = 0
    for item in items:
        block.append(item)
        total += size(item)
        if total >= limit:
            yield block
            block, total = [], 0
    if block:
        yield block


def distinct(items: Iterable[ItemT], name: Callable[[ItemT], str]) -> Iterator[ItemT]:
    """Yield the items whose ``name`` no earlier one has, in order.

    Names are remembered by hashes of eight bytes, in a ``HashSet``. Among ten million names, two
    hashes are equal once in 400,000 runs.
    """
    seen = HashSet()
    for item in items:
        digest = hashlib.blake2b(name(item).encode(), digest_size=8).digest()
        if seen.add(int.from_bytes(digest, "little")):
            yield item
