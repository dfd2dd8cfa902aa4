"""Exact search of the documents with the highest inner products, over blocks of documents."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embedkit.mining.corpus import Ids

Scores = NDArray[np.float32]

_SCORES = {"cpu": 2**25, "cuda": 2**28}
"""Number of fp32 scores that exist at a time."""
_VALUES = {"cpu": 2**25, "cuda": 2**28}
"""Number of fp32 values of documents' vectors that exist at a time, however few the queries are."""


class Search(Protocol):
    """A search of documents, whose vectors it knows."""

    def top(self, queries: Scores, count: int) -> tuple[Scores, Ids]:
        """Return the best documents of each query, best first.

        Shapes: queries ``(q, D)`` -> scores and numbers ``(q, count)``; where fewer were found,
        the numbers end in -1.
        """


Best = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
"""Function of queries ``(q, D)``, documents ``(n, D)`` and k: the k best scores and their places,
both ``(q, k)``."""


class ExactSearch:
    """Exact search that walks over the documents block by block and keeps the best so far.

    Args:
        vectors: vectors of the documents, ``(N, D)``, memory-mapped.
        device: device that computes the scores, in fp32.
        best: function that finds the best documents of a block.
    """

    def __init__(self, vectors: NDArray[Any], device: torch.device, best: Best) -> None:
        self._vectors, self._device, self._best = vectors, device, best

    def top(self, queries: Scores, count: int) -> tuple[Scores, Ids]:
        wanted = torch.from_numpy(queries).to(self._device)
        scores = wanted.new_empty(len(queries), 0)
        numbers = torch.empty(len(queries), 0, dtype=torch.int64, device=self._device)
        device, width = self._device.type, self._vectors.shape[1]
        step = max(1, min(_SCORES[device] // max(len(queries), 1), _VALUES[device] // width))
        for start in range(0, len(self._vectors), step):
            block = self._vectors[start : start + step].astype(np.float32)
            documents = torch.from_numpy(block).to(self._device)
            block_scores, places = self._best(wanted, documents, min(count, len(documents)))
            scores = torch.cat([scores, block_scores], dim=1)
            numbers = torch.cat([numbers, places + start], dim=1)
            scores, kept = scores.topk(min(count, scores.shape[1]), dim=1)
            numbers = numbers.gather(1, kept)
        return ordered(scores.cpu().numpy(), numbers.cpu().numpy(), count)


def torch_best(queries: Tensor, documents: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Find the best documents of a block by a matrix product and a partial sort."""
    best = (queries @ documents.T).topk(count, dim=1)
    return best.values, best.indices


def ordered(scores: Scores, numbers: Ids, count: int) -> tuple[Scores, Ids]:
    """Return ``count`` columns, best first, equal scores by number; what was not found is -1."""
    scores = np.where(numbers < 0, np.float32(-np.inf), scores)
    order = np.lexsort((numbers, -scores), axis=1)
    lacking = ((0, 0), (0, count - scores.shape[1]))
    return (
        np.pad(np.take_along_axis(scores, order, 1), lacking, constant_values=-np.inf),
        np.pad(np.take_along_axis(numbers, order, 1), lacking, constant_values=-1),
    )
