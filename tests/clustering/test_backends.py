"""The two ways of doing the arithmetic."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from embedkit.clustering.backends import (
    Backend,
    FaissBackend,
    TorchBackend,
    cluster_sums,
    means,
    open_backend,
)
from embedkit.clustering.settings import BackendName

CPU = torch.device("cpu")
BOTH = pytest.mark.parametrize("name", ["torch", "faiss"])


def grouped(groups: int, each: int) -> Tensor:
    """Points close around the first axes, group after group."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.eye(16)[:groups].repeat_interleave(each, dim=0)
    return F.normalize(centres + 0.1 * torch.randn(groups * each, 16, generator=generator), dim=1)


def cohesion(backend: Backend, points: Tensor, centroids: Tensor) -> float:
    return backend.search(points, centroids, 1)[0].mean().item()


def best_of_three(backend: Backend, points: Tensor, num: int) -> Tensor:
    """The best of three trainings: a single one may begin with two centroids in one group."""
    trained = [backend.train(points, num, seed=seed) for seed in range(3)]
    return max(trained, key=lambda centroids: cohesion(backend, points, centroids))


@BOTH
def test_search_finds_what_a_matrix_product_finds(name: BackendName) -> None:
    points, centroids = grouped(6, 10), grouped(5, 1)
    scores, nearest = open_backend(name, CPU).search(points, centroids, 3)
    expected = (points @ centroids.T).topk(3, dim=1)
    torch.testing.assert_close(scores, expected.values)
    assert torch.equal(nearest, expected.indices)


@BOTH
def test_training_finds_well_parted_groups(name: BackendName) -> None:
    points = grouped(4, 50)
    backend = open_backend(name, CPU)
    centroids = best_of_three(backend, points, 4)
    torch.testing.assert_close(centroids.norm(dim=1), torch.ones(4))
    homes = backend.search(points, centroids, 1)[1].view(4, 50)
    assert [len(set(group.tolist())) for group in homes] == [1] * 4
    assert len(set(homes[:, 0].tolist())) == 4


@BOTH
def test_a_seed_makes_the_same_centroids_again(name: BackendName) -> None:
    backend, points = open_backend(name, CPU), grouped(8, 40)
    first, again, other = (backend.train(points, 6, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_backends_agree_in_quality() -> None:
    points = grouped(12, 60)
    in_torch, in_faiss = (
        cohesion(backend, points, best_of_three(backend, points, 8))
        for backend in (TorchBackend(CPU), FaissBackend(CPU))
    )
    assert in_torch == pytest.approx(in_faiss, rel=0.02)


def test_a_cluster_that_lost_its_points_begins_at_the_worst_one() -> None:
    points = torch.eye(3)[[0, 0, 1, 2]]
    scores = torch.tensor([0.9, 0.8, 0.7, 0.1])
    centroids = means(points, torch.tensor([0, 0, 1, 1]), scores, 3)
    torch.testing.assert_close(centroids[2], torch.tensor([0.0, 0.0, 1.0]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_sums_on_a_gpu_are_the_same_at_every_call() -> None:
    points, homes = grouped(16, 4000).cuda(), torch.arange(64_000).cuda() % 7
    first, again = (cluster_sums(points, homes, 7) for _ in range(2))
    assert torch.equal(first, again)
    expected = cluster_sums(points.cpu(), homes.cpu(), 7)
    torch.testing.assert_close(first.cpu(), expected, atol=1e-3, rtol=1e-4)
