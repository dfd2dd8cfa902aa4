"""Reduce the two vectors of each pair to one short point, which k-means works on.

With equal centroids for both sides, clustering queries and documents together is clustering their
means: |q - m|^2 + |d - m|^2 = 2 |(q + d) / 2 - m|^2 + |q - d|^2 / 2, and the last term is fixed. So
each pair is one point, the direction of q + d, in the leading principal axes.
"""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from embedkit import rng
from embedkit.data.vector_store import VectorStore

_SAMPLED = 100_000
"""Number of pairs that the axes are fitted on."""
_PAIRS = 2**16
"""Number of pairs that are read at a time."""


def principal_axes(store: VectorStore, dims: int, *, seed: int) -> Tensor:
    """Return the directions in which the vectors of both sides are longest; ``(D, dims)`` at most.

    The vectors are not centred: projection then keeps inner products, and so the cosines.
    """
    count = min(_SAMPLED, len(store))
    rows = np.sort(rng.permuted(np.arange(count), len(store), rng.fold_in(seed, "axes")))
    moments = torch.zeros(store.width, store.width, dtype=torch.float64)
    for side in (store.queries, store.documents):
        for part in np.array_split(rows, max(1, count // 2**14)):
            vectors = torch.from_numpy(side[part].astype(np.float32))
            moments += (vectors.T @ vectors).double()
    _, axes = torch.linalg.eigh(moments)
    return axes[:, -dims:].flip(1).float()


def write_points(store: VectorStore, axes: Tensor, points: NDArray[np.float16]) -> None:
    """Fill ``points``, ``(n, dims)``, with unit vectors."""
    for start in range(0, len(store), _PAIRS):
        rows = slice(start, start + _PAIRS)
        sides = (side[rows].astype(np.float32) for side in (store.queries, store.documents))
        pairs = mean_directions(*map(torch.from_numpy, sides))
        points[rows] = F.normalize(pairs @ axes, dim=1).half().numpy()


def mean_directions(queries: Tensor, documents: Tensor) -> Tensor:
    """Return the unit vector in the middle of each pair. Shapes: all ``(n, D)``."""
    return F.normalize(queries + documents, dim=1)
