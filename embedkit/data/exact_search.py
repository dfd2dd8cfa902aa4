"""Exact search of the documents with the highest scores, block by block."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Best = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
"""Function of queries ``(q, D)``, documents ``(n, D)`` and k: the k best scores and their places,
both ``(q, k)``."""

_SCORES = {"cpu": 2**25, "cuda": 2**28}
_VALUES = _SCORES.copy()
"""Numbers of fp32 scores, and of values of documents' vectors, that exist at a time."""


class ExactSearch:
    """Exact search that walks over the documents block by block and keeps the best so far.

    Shapes: vectors of the documents ``(N, D)``, which may be memory-mapped. Scores are computed in
    fp32.
    """

    def __init__(self, vectors: NDArray[np.floating], device: torch.device, best: Best) -> None:
        self._vectors, self._device, self._best = vectors, device, best

    def top(
        self, queries: NDArray[np.float32], count: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the best documents of each query, best first.

        Shapes: queries ``(q, D)`` -> scores and numbers ``(q, count)``; where fewer were found,
        the numbers end in -1.
        """
        scores, numbers = self.best(torch.from_numpy(queries), count)
        return scores.cpu().numpy(), numbers.cpu().numpy()

    def best(self, queries: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return what ``top`` returns, as tensors on the device."""
        wanted = queries.to(self._device)
        scores = wanted.new_empty(len(queries), 0)
        numbers = torch.empty(len(queries), 0, dtype=torch.int64, device=self._device)
        device, width = self._device.type, self._vectors.shape[1]
        step = max(1, min(_SCORES[device] // max(len(queries), 1), _VALUES[device] // width))
        for start in range(0, len(self._vectors), step):
            block = self._vectors[start : start + step].astype(np.float32)
            documents = torch.from_numpy(block).to(self._device)
            found, places = self._best(wanted, documents, min(count, len(documents)))
            scores = torch.cat([scores, found], dim=1)
            numbers = torch.cat([numbers, places + start], dim=1)
            if scores.shape[1] > 2 * count:  # Ordering can cost more than the search: do it rarely.
                scores, numbers = ordered(scores, numbers, count)
        return ordered(scores, numbers, count)


def best_by(similarity: Callable[[Tensor, Tensor], Tensor]) -> Best:
    """Return the search of a block by a function that compares all queries with all documents."""

    def best(queries: Tensor, documents: Tensor, count: int) -> tuple[Tensor, Tensor]:
        found = similarity(queries, documents).topk(count, dim=1)
        return found.values, found.indices

    return best


def dot_products(queries: Tensor, documents: Tensor) -> Tensor:
    """Return all inner products. Shapes: ``(q, D)``, ``(n, D)`` -> ``(q, n)``."""
    return queries @ documents.T


def ordered(scores: Tensor, numbers: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return ``count`` columns, best first, equal scores by number; what was not found is -1.

    Shapes: fp32 scores and numbers below 2**31 ``(q, n)`` -> ``(q, count)``.
    """
    # One topk of integers, score above and number below, takes a fraction of the time of two sorts.
    # Adding 0 turns -0 into 0.
    bits = (scores.masked_fill(numbers < 0, -torch.inf) + 0.0).view(torch.int32)
    keys = _by_size(bits).to(torch.int64)
    keys = keys.bitwise_left_shift_(32).bitwise_or_(~numbers & 0xFFFFFFFF)
    keys = keys.topk(min(count, keys.shape[1]), dim=1).values
    scores = _by_size((keys >> 32).to(torch.int32)).view(torch.float32)
    numbers = (~keys).to(torch.int32).to(torch.int64)
    lacking = (0, max(0, count - scores.shape[1]))
    scores = torch.nn.functional.pad(scores, lacking, value=-torch.inf)
    numbers = torch.nn.functional.pad(numbers, lacking, value=-1)
    return scores, numbers


def _by_size(bits: Tensor) -> Tensor:
    """Turn bits of fp32 numbers into integers of the same order, and back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
