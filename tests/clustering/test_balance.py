"""Clusters of exactly one size."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from embedkit.clustering.backends import Backend, FaissBackend, TorchBackend
from embedkit.clustering.balance import Offers, equal_clusters, rounded, settle

CPU = torch.device("cpu")


def unit(rows: int, width: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(rows, width, generator=generator), dim=1)


def clustered(rows: int, groups: int, width: int, seed: int) -> Tensor:
    """Points around centres, of which a few have most."""
    rng = np.random.default_rng(seed)
    share = rng.dirichlet(np.full(groups, 0.5))
    centres = unit(groups, width, seed)[torch.from_numpy(rng.choice(groups, rows, p=share))]
    return F.normalize(centres + 0.5 * unit(rows, width, seed + 1), dim=1)


@pytest.mark.parametrize("backend", [TorchBackend(CPU), FaissBackend(CPU)], ids=["torch", "faiss"])
@pytest.mark.parametrize(("rows", "size"), [(600, 32), (640, 64), (100, 64), (64, 64), (63, 64)])
def test_every_cluster_is_exactly_full(backend: Backend, rows: int, size: int) -> None:
    clusters = equal_clusters(clustered(rows, 7, 16, seed=0), size, backend, seed=1)
    counts = torch.bincount(clusters + 1, minlength=1)
    assert counts[0] == rows % size
    assert counts[1:].tolist() == [size] * (rows // size)


@pytest.mark.parametrize("seed", range(6))
def test_rounding_comes_near_the_best_assignment(seed: int) -> None:
    points, centroids, size = clustered(96, 5, 8, seed).double(), unit(8, 8, seed + 9).double(), 12
    offers = Offers(*(points @ centroids.T).sort(dim=1, descending=True))
    clusters = rounded(points, centroids, offers, settle(offers, torch.zeros(8), size), size)
    scores = (points @ centroids.T).numpy()
    # The optimum: every centroid stands for as many places as it has.
    rows, places = linear_sum_assignment(-scores.repeat(size, axis=1))
    best = scores[rows, places // size].sum()
    drawn = scores[np.arange(96), np.arange(96) % 8].sum()
    ours = scores[np.arange(96), clusters.numpy()].sum()
    assert ours - drawn > 0.99 * (best - drawn)


@pytest.mark.parametrize("backend", [TorchBackend(CPU), FaissBackend(CPU)], ids=["torch", "faiss"])
def test_a_seed_makes_the_same_clusters_again(backend: Backend) -> None:
    points = clustered(400, 7, 16, seed=0)
    first, again, other = (equal_clusters(points, 32, backend, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_equal_clusters_are_nearly_as_close_as_free_ones() -> None:
    points, backend = clustered(960, 20, 16, seed=3), TorchBackend(CPU)
    free = backend.search(points, backend.train(points, 15, seed=0), 1)[0].mean()
    clusters = equal_clusters(points, 64, backend, seed=0)
    centres = F.normalize(torch.stack([points[clusters == k].mean(0) for k in range(15)]), dim=1)
    equal = (points * centres[clusters]).sum(1).mean()
    drawn = F.normalize(points.view(15, 64, 16).mean(1), dim=1).repeat_interleave(64, dim=0)
    by_chance = (points * drawn).sum(1).mean()
    assert equal - by_chance > 0.75 * (free - by_chance)


def test_the_points_left_out_lie_furthest_out() -> None:
    near = F.normalize(torch.eye(4).repeat(8, 1) + 0.05 * unit(32, 4, 0), dim=1)
    outliers = F.normalize(torch.tensor([[1.0, 1, 1, 1], [-1, -1, -1, -1]]), dim=1)
    clusters = equal_clusters(torch.cat([outliers, near]), 8, TorchBackend(CPU), seed=0)
    assert clusters[:2].tolist() == [-1, -1]
