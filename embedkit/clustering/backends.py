"""Who does the arithmetic of clustering: torch or faiss, on a CPU or a GPU."""

from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from embedkit import rng
from embedkit.clustering.settings import BackendName
from embedkit.errors import ArgumentError

_ITERATIONS = 10
SAMPLED = 256
"""Points for each centroid that training looks at, as faiss has it."""
_BLOCK_ELEMENTS = 2**24
"""Scores in memory at a time: 64 MiB."""


class Backend(Protocol):
    """Spherical k-means and exact search; the same seed gives the same centroids.

    Shapes: n points and k centroids of p dimensions, all fp32, unit-norm and on ``device``.
    """

    name: BackendName
    device: torch.device

    def train(self, points: Tensor, num: int, *, seed: int) -> Tensor:
        """``num`` centroids, ``(k, p)``."""
        ...

    def search(self, points: Tensor, centroids: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The ``count`` nearest centroids of each point.

        Shapes: scores ``(n, count)``, best first, and their centroids ``(n, count)``, int64.
        """
        ...


def open_backend(name: BackendName, device: torch.device) -> Backend:
    """Open the backend called ``name``.

    Raises:
        ArgumentError: faiss is not installed.
    """
    return FaissBackend(device) if name == "faiss" else TorchBackend(device)


class TorchBackend:
    """Blocks of one matrix product each; needs nothing but torch."""

    name: BackendName = "torch"

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def train(self, points: Tensor, num: int, *, seed: int) -> Tensor:
        # The keys have a 0 in them so that a seed still makes the batches that it always made.
        sample = points[_drawn(len(points), SAMPLED * num, rng.fold_in(seed, 0, "sample"))]
        centroids = sample[_drawn(len(sample), num, rng.fold_in(seed, 0, "first"))]
        for _ in range(_ITERATIONS):
            scores, nearest = self.search(sample, centroids, 1)
            centroids = means(sample, nearest[:, 0], scores[:, 0], num)
        return centroids

    def search(self, points: Tensor, centroids: Tensor, count: int) -> tuple[Tensor, Tensor]:
        block = max(1, _BLOCK_ELEMENTS // len(centroids))
        found = [_top(part @ centroids.T, count) for part in points.split(block)]
        scores, nearest = zip(*found, strict=True)
        return torch.cat(scores), torch.cat(nearest)


class FaissBackend:
    """``faiss.Kmeans`` and a flat index; on a GPU where faiss has been built for one."""

    name: BackendName = "faiss"

    def __init__(self, device: torch.device) -> None:
        try:
            import faiss
        except ImportError:
            reason = (
                'faiss is not installed: pip install "embedkit-neobert[faiss]" (with a GPU: '
                "[gpu]), or take torch"
            )
            raise ArgumentError(("backend", reason)) from None
        # The distribution for GPUs is another one than that for CPUs.
        on_gpu = device.type == "cuda" and faiss.get_num_gpus() > 0
        self.device = device if on_gpu else torch.device("cpu")
        self._faiss = faiss

    def train(self, points: Tensor, num: int, *, seed: int) -> Tensor:
        kmeans = self._faiss.Kmeans(
            points.shape[1],
            num,
            niter=_ITERATIONS,
            spherical=True,
            seed=seed & 0x7FFF_FFFF,
            # Given here they hold; set on the object they would not.
            max_points_per_centroid=SAMPLED,
            min_points_per_centroid=1,
        )
        # By itself it would take the first GPU, or all, in every process of a machine.
        kmeans.index = self._index(points.shape[1])
        kmeans.train(_array(points))
        return torch.from_numpy(kmeans.centroids).to(self.device)

    def search(self, points: Tensor, centroids: Tensor, count: int) -> tuple[Tensor, Tensor]:
        index = self._index(points.shape[1])
        index.add(_array(centroids))
        scores, nearest = index.search(_array(points), count)
        return torch.from_numpy(scores).to(self.device), torch.from_numpy(nearest).to(self.device)

    def _index(self, dims: int) -> Any:
        """An empty flat index where the arithmetic is to be done."""
        index = self._faiss.IndexFlatIP(dims)
        if self.device.type == "cpu":
            return index
        resources = self._faiss.StandardGpuResources()
        return self._faiss.index_cpu_to_gpu(resources, self.device.index or 0, index)


def means(points: Tensor, assigned: Tensor, scores: Tensor, num: int) -> Tensor:
    """The direction of each cluster's mean, ``(num, p)``; unit-norm.

    A cluster without points begins anew at one of those that are worst off, by ``scores``.
    """
    sums = cluster_sums(points, assigned, num)
    empty = (torch.bincount(assigned, minlength=num) == 0).nonzero().squeeze(1)
    if len(empty):
        sums[empty] = points[torch.argsort(scores, stable=True)[: len(empty)]]
    return F.normalize(sums, dim=1)


def cluster_sums(points: Tensor, assigned: Tensor, num: int) -> Tensor:
    """The sum of each cluster's points, ``(num, p)``, the same at every call."""
    if points.device.type == "cpu":
        return points.new_zeros(num, points.shape[1]).index_add_(0, assigned, points)
    # A GPU adds in any order, and of integers every order makes the same sum.
    whole = (points * 2.0**30).to(torch.int64)
    sums = whole.new_zeros(num, points.shape[1]).index_add_(0, assigned, whole)
    return (sums.double() * 2.0**-30).to(points.dtype)


def _top(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    if count == 1:
        best, where = scores.max(dim=1, keepdim=True)
        return best, where
    best, where = scores.topk(count, dim=1)
    return best, where


def _drawn(size: int, count: int, draw_key: int) -> Tensor:
    """``count`` of ``range(size)``, or all of it, in a shuffled order."""
    places = np.arange(min(count, size))
    return torch.from_numpy(rng.permuted(places, size, draw_key))


def _array(points: Tensor) -> Any:
    return np.ascontiguousarray(points.cpu().numpy())
