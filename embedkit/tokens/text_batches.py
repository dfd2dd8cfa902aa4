"""Batches of texts, which follow from the texts alone.

In low precision the last bits of a vector depend on the texts beside which its text is encoded. A
batch is therefore the same in every call, on every rank and with every part of a cache.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def estimated_tokens(texts: Sequence[str]) -> Rows:
    """Estimate numbers of tokens from characters. Shapes: ``(len(texts),)``."""
    # An English token has four to five characters; two tokens open and close a sequence.
    return np.array([len(text) for text in texts], dtype=np.int64) // 4 + 2


def text_batches(texts: Sequence[str], lengths: Rows, budget: int) -> list[Rows]:
    """Split texts, sorted by length, into batches of three quarters of ``budget`` to the whole.

    A batch ends after a text that its hash marks, so that a text more or less in a corpus changes
    a few batches and leaves the others as they are. The batches of a union of batches are these
    batches, in the order of the whole list.

    Shapes: ``lengths`` ``(texts,)``, estimated from each text; a batch holds rows of ``texts``, the
    longest first. The budget counts a batch as its number of texts times its first length.
    """
    hashes = np.fromiter(map(_hash, texts), np.uint64, len(texts))
    order = np.lexsort((hashes, -lengths))
    batches, start = [], 0
    while start < len(order):
        most = max(1, budget // int(lengths[order[start]]))
        least = most - most // 4
        # About four texts between the least and the largest size are marked.
        candidates = hashes[order[start + least - 1 : start + most]]
        marked = np.flatnonzero(candidates % np.uint64(max(1, most // 16)) == 0)
        size = least + int(marked[0]) if len(marked) else most
        batches.append(order[start : start + size])
        start += size
    return batches


def one_ahead(make: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> Iterator[ResultT]:
    """Yield ``make(item)`` of each item, while a thread makes the next."""
    with ThreadPoolExecutor(1) as thread:
        made: deque[Future[ResultT]] = deque()
        for item in items:
            made.append(thread.submit(make, item))
            if len(made) > 1:
                yield made.popleft().result()
        while made:
            yield made.popleft().result()


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
