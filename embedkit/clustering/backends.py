"""Arithmetic of clustering, by torch or by faiss, on a CPU or a GPU."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from embedkit import rng
from embedkit.clustering.settings import BackendName
from embedkit.data.faiss_library import load_faiss, moved, runs_on

_ITERATIONS = 10
SAMPLED = 256
"""Number of points for each centroid that training looks at, as in faiss."""
_SCORES = 2**24
"""Number of scores in memory at a time: 64 MiB."""


class TorchBackend:
    """Spherical k-means and exact search by torch; the same seed gives the same centroids.

    Shapes: n points and k centroids of p dimensions, all fp32, unit-norm and on ``device``.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def train(self, points: Tensor, num: int, *, seed: int) -> Tensor:
        """Return ``num`` centroids, ``(k, p)``."""
        # The keys have a 0 in them so that a seed still makes the batches that it always made.
        sample = points[_draw(len(points), SAMPLED * num, rng.fold_in(seed, 0, "sample"))]
        centroids = sample[_draw(len(sample), num, rng.fold_in(seed, 0, "first"))]
        for _ in range(_ITERATIONS):
            scores, nearest = self.search(sample, centroids, 1)
            centroids = means(sample, nearest[:, 0], scores[:, 0], num)
        return centroids

    def search(self, points: Tensor, centroids: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the ``count`` nearest centroids of each point.

        Shapes: scores ``(n, count)``, best first, and their centroids ``(n, count)``, int64.
        """
        best = []
        for block in points.split(max(1, _SCORES // len(centroids))):
            scores = block @ centroids.T
            best.append(scores.max(1, keepdim=True) if count == 1 else scores.topk(count))
        scores, nearest = map(torch.cat, zip(*best, strict=True))
        return scores, nearest


class FaissBackend:
    """``faiss.Kmeans`` and a flat index, on a GPU where faiss has been built for one."""

    def __init__(self, device: torch.device) -> None:
        self._faiss = load_faiss("backend")
        # faiss has one distribution for GPUs and another for CPUs.
        self.device = device if runs_on(self._faiss, device) else torch.device("cpu")

    def train(self, points: Tensor, num: int, *, seed: int) -> Tensor:
        kmeans = self._faiss.Kmeans(
            points.shape[1],
            num,
            niter=_ITERATIONS,
            spherical=True,
            seed=seed & 0x7FFF_FFFF,
            # These two hold only as arguments: on the object they would have no effect.
            max_points_per_centroid=SAMPLED,
            min_points_per_centroid=1,
        )
        # By default it would take the first GPU, or all, in every process of a machine.
        kmeans.index = self._index(points.shape[1])
        kmeans.train(_array(points))
        return torch.from_numpy(kmeans.centroids).to(self.device)

    def search(self, points: Tensor, centroids: Tensor, count: int) -> tuple[Tensor, Tensor]:
        index = self._index(points.shape[1])
        index.add(_array(centroids))
        scores, nearest = map(torch.from_numpy, index.search(_array(points), count))
        return scores.to(self.device), nearest.to(self.device)

    def _index(self, dims: int) -> Any:
        """Return an empty flat index on the device."""
        return moved(self._faiss, self._faiss.IndexFlatIP(dims), self.device)


Backend = TorchBackend | FaissBackend


def open_backend(name: BackendName, device: torch.device) -> Backend:
    """Open a backend by its name; ArgumentError where it is not installed."""
    return FaissBackend(device) if name == "faiss" else TorchBackend(device)


def means(points: Tensor, assigned: Tensor, scores: Tensor, num: int) -> Tensor:
    """Return the direction of each cluster's mean, ``(num, p)``, unit-norm.

    A cluster without points begins anew at one of the points with the lowest ``scores``.
    """
    sums = cluster_sums(points, assigned, num)
    empty = (torch.bincount(assigned, minlength=num) == 0).nonzero().squeeze(1)
    if len(empty):
        sums[empty] = points[torch.argsort(scores, stable=True)[: len(empty)]]
    return F.normalize(sums, dim=1)


def cluster_sums(points: Tensor, assigned: Tensor, num: int) -> Tensor:
    """Return the sum of each cluster's points, ``(num, p)``, the same at every call."""
    if points.device.type == "cpu":
        return points.new_zeros(num, points.shape[1]).index_add_(0, assigned, points)
    # A GPU adds in any order, and only sums of integers do not depend on the order.
    whole = (points * 2.0**30).to(torch.int64)
    sums = whole.new_zeros(num, points.shape[1]).index_add_(0, assigned, whole)
    return (sums.double() * 2.0**-30).to(points.dtype)


def _draw(size: int, count: int, key: int) -> Tensor:
    """Draw ``count`` of ``range(size)``, or all of it, in a shuffled order."""
    return torch.from_numpy(rng.permuted(np.arange(min(count, size)), size, key))


def _array(points: Tensor) -> Any:
    return np.ascontiguousarray(points.cpu().numpy())
