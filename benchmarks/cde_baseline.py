"""The published way of making contextual batches, to compare with (CDE paper, section 4.1).

Reimplemented from its description and from the settings of its authors' code: k-means over pairs
of vectors in both orders, clusters of any size laid end to end, and batches taken off that line.
"""

import faiss
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from embedkit import rng

_DIMS = 128
_FITTED = 100_000
"""Number of queries, from the first on, that the axes are fitted on."""
_ITERATIONS = 100
_TRIES = 3
_SAMPLED = 256
"""Points that k-means trains on for each centroid, as faiss has it."""


def published_clusters(
    queries: NDArray[np.float16], documents: NDArray[np.float16], size: int, *, seed: int
) -> NDArray[np.int64]:
    """Return the cluster of each pair, ``(n,)``: ``ceil(n / size)`` clusters of any size.

    Shapes: queries and documents ``(n, D)``, unit-norm.
    """
    first, second = _reduced(queries, documents)
    forward = F.normalize(torch.cat([first, second], dim=1), dim=1)
    backward = F.normalize(torch.cat([second, first], dim=1), dim=1)
    kmeans = faiss.Kmeans(
        forward.shape[1],
        -(-len(forward) // size),
        niter=_ITERATIONS,
        nredo=_TRIES,
        spherical=True,
        gpu=faiss.get_num_gpus() > 0,
        seed=seed & 0x7FFF_FFFF,
        max_points_per_centroid=_SAMPLED,
        min_points_per_centroid=1,
    )
    kmeans.train(torch.cat([forward, backward]).numpy())
    clusters: NDArray[np.int64] = kmeans.assign(forward.numpy())[1]
    return clusters


def packed(
    clusters: NDArray[np.int64], documents: NDArray[np.float16], size: int, *, seed: int, near: bool
) -> list[NDArray[np.int64]]:
    """Take full batches off the line of all clusters; what is left at its end is lost.

    ``near`` walks from each cluster to the nearest one that is left (the authors' better choice);
    otherwise the order of the clusters is drawn.
    """
    num = int(clusters.max()) + 1
    order = rng.permuted(np.arange(num), num, rng.fold_in(seed, "packed"))
    if near:
        order = _greedy_tour(clusters, documents, int(order[0]))
    positions = np.empty(num, dtype=np.int64)
    positions[order] = np.arange(num)
    line = np.argsort(positions[clusters], kind="stable")
    return list(line[: len(line) // size * size].reshape(-1, size))


def largest_share(batches: list[NDArray[np.int64]], clusters: NDArray[np.int64]) -> float:
    """Return the share of a batch that comes from its largest cluster, the mean of ``batches``."""
    shares = [np.bincount(clusters[rows]).max() / len(rows) for rows in batches]
    return float(np.mean(shares))


def _reduced(queries: NDArray[np.float16], documents: NDArray[np.float16]) -> tuple[Tensor, Tensor]:
    first, second = (torch.from_numpy(side.astype(np.float32)) for side in (queries, documents))
    fitted = first[:_FITTED]
    _, axes = torch.linalg.eigh(fitted.T @ fitted)
    axes = axes[:, -_DIMS:]
    return F.normalize(first @ axes, dim=1), F.normalize(second @ axes, dim=1)


def _greedy_tour(
    clusters: NDArray[np.int64], documents: NDArray[np.float16], start: int
) -> NDArray[np.int64]:
    """Return the clusters in a greedy tour over the means of their documents."""
    num = int(clusters.max()) + 1
    centres = np.zeros((num, documents.shape[1]), dtype=np.float32)
    np.add.at(centres, clusters, documents.astype(np.float32))
    centres /= np.maximum(np.bincount(clusters, minlength=num), 1)[:, None]
    tour, remaining = [start], np.ones(num, dtype=bool)
    remaining[start] = False
    while remaining.any():
        distances = ((centres - centres[tour[-1]]) ** 2).sum(axis=1)
        tour.append(int(np.where(remaining, distances, np.inf).argmin()))
        remaining[tour[-1]] = False
    return np.array(tour)
