"""Gathers streams of items in blocks, and drops items that came before."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

ItemT = TypeVar("ItemT")

_AT_ONCE = 4096


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

    Names are remembered by hashes of eight bytes: half a gigabyte would go into a set of ten
    million, and two such hashes meet once in 400,000 runs.
    """
    # Sorted arrays of hashes, which merge as they grow.
    runs: list[NDArray[np.uint64]] = []
    for block in blocks_of(items, lambda _: 1, _AT_ONCE):
        digests = (hashlib.blake2b(name(item).encode(), digest_size=8).digest() for item in block)
        hashes, first = np.unique(np.frombuffer(b"".join(digests), "<u8"), return_index=True)
        new = np.ones(len(hashes), dtype=bool)
        for run in runs:
            nearest = np.minimum(np.searchsorted(run, hashes), len(run) - 1)
            new &= run[nearest] != hashes
        yield from (block[index] for index in np.sort(first[new]))
        if new.any():
            run = hashes[new]
            while runs and len(runs[-1]) <= 2 * len(run):
                run = np.sort(np.concatenate([runs.pop(), run]))
            runs.append(run)
