"""The published way of making contextual batches, to compare with (CDE paper, section 4.1).

Reimplemented from its description and from the settings of its authors' code: k-means over pairs
of vectors in both orders, clusters of any size laid end to end, and batches cut off that line.
"""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from embedkit import rng
from embedkit.clustering.backends import Backend

_DIMS = 128
_FITTED = 100_000
"""Queries, the first ones, that the axes are fitted on."""
_ITERATIONS = 100
_TRIES = 3


def published_clusters(
    queries: NDArray[np.float16],
    documents: NDArray[np.float16],
    size: int,
    backend: Backend,
    *,
    seed: int,
) -> NDArray[np.int64]:
    """The cluster of each pair, ``(n,)``: ``ceil(n / size)`` of them, of any size."""
    first, second = _reduced(queries, documents, backend.device)
    forward = F.normalize(torch.cat([first, second], dim=1), dim=1)
    backward = F.normalize(torch.cat([second, first], dim=1), dim=1)
    num = -(-len(forward) // size)
    both = torch.cat([forward, backward])
    centroids = backend.train(both, num, seed=seed, iterations=_ITERATIONS, tries=_TRIES)
    return backend.search(forward, centroids, 1)[1][:, 0].cpu().numpy()


def packed(
    clusters: NDArray[np.int64], documents: NDArray[np.float16], size: int, *, seed: int, near: bool
) -> list[NDArray[np.int64]]:
    """Full batches cut off the line of all clusters; what is left at its end is lost.

    ``near`` walks from each cluster to the nearest one that is left (their better choice), and
    otherwise the order is drawn.
    """
    num = int(clusters.max()) + 1
    order = rng.permuted(np.arange(num), num, rng.fold_in(seed, "packed"))
    if near:
        order = _walk(clusters, documents, int(order[0]))
    places = np.empty(num, dtype=np.int64)
    places[order] = np.arange(num)
    line = np.argsort(places[clusters], kind="stable")
    return list(line[: len(line) // size * size].reshape(-1, size))


def own_share(batches: list[NDArray[np.int64]], clusters: NDArray[np.int64]) -> float:
    """The share of a batch that comes from its largest cluster, on average over ``batches``."""
    shares = [np.bincount(clusters[rows]).max() / len(rows) for rows in batches]
    return float(np.mean(shares))


def _reduced(
    queries: NDArray[np.float16], documents: NDArray[np.float16], device: torch.device
) -> tuple[Tensor, Tensor]:
    first, second = (
        torch.from_numpy(side.astype(np.float32)).to(device) for side in (queries, documents)
    )
    fitted = first[:_FITTED]
    _, axes = torch.linalg.eigh(fitted.T @ fitted)
    axes = axes[:, -_DIMS:]
    return F.normalize(first @ axes, dim=1), F.normalize(second @ axes, dim=1)


def _walk(
    clusters: NDArray[np.int64], documents: NDArray[np.float16], start: int
) -> NDArray[np.int64]:
    """Clusters in a greedy tour over the means of their documents."""
    num = int(clusters.max()) + 1
    centres = np.zeros((num, documents.shape[1]), dtype=np.float32)
    np.add.at(centres, clusters, documents.astype(np.float32))
    centres /= np.maximum(np.bincount(clusters, minlength=num), 1)[:, None]
    tour, away = [start], np.ones(num, dtype=bool)
    away[start] = False
    while away.any():
        distances = ((centres - centres[tour[-1]]) ** 2).sum(axis=1)
        tour.append(int(np.where(away, distances, np.inf).argmin()))
        away[tour[-1]] = False
    return np.array(tour)
