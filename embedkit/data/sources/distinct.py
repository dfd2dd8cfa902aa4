"""The first of each of many things, told apart by eight bytes each."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np

ItemT = TypeVar("ItemT")

_AT_ONCE = 4096


def distinct(items: Iterable[ItemT], name: Callable[[ItemT], str]) -> Iterator[ItemT]:
    """Yield the items whose ``name`` no earlier one has, in order."""
    seen = _Seen()
    block: list[ItemT] = []
    for item in items:
        block.append(item)
        if len(block) == _AT_ONCE:
            yield from (block[place] for place in seen.fresh(list(map(name, block))))
            block = []
    yield from (block[place] for place in seen.fresh(list(map(name, block))))


class _Seen:
    """Remembers names by their hashes, in sorted runs that merge as they grow.

    Half a gigabyte would go into a set of ten million; two such hashes meet once in 400,000 runs.
    """

    def __init__(self) -> None:
        self._runs: list[np.ndarray] = []

    def fresh(self, names: list[str]) -> np.ndarray:
        """The places of the names that are in no earlier place, in order."""
        keys = np.array([_hash(each) for each in names], dtype=np.uint64)
        found, first = np.unique(keys, return_index=True)
        new = np.ones(len(found), dtype=bool)
        for run in self._runs:
            places = np.minimum(np.searchsorted(run, found), len(run) - 1)
            new &= run[places] != found
        if new.any():
            self._add(found[new])
        return np.sort(first[new])

    def _add(self, run: np.ndarray) -> None:
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            run = np.sort(np.concatenate([self._runs.pop(), run]))
        self._runs.append(run)


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
