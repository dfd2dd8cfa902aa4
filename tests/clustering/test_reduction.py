"""From two vectors a pair to one point."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from support.vector_stores import write_store

from embedkit.clustering.reduction import mean_directions, principal_axes, write_points


def test_clustering_both_sides_is_clustering_their_means() -> None:
    generator = torch.Generator().manual_seed(0)
    q, d, m = (torch.randn(5, 6, generator=generator, dtype=torch.float64) for _ in range(3))
    q, d = F.normalize(q, dim=1), F.normalize(d, dim=1)
    # Squared distances of every pair to every symmetric centroid (m, m).
    both = torch.cdist(q, m) ** 2 + torch.cdist(d, m) ** 2
    means = 2 * torch.cdist((q + d) / 2, m) ** 2
    fixed = (q - d).square().sum(1, keepdim=True) / 2
    torch.testing.assert_close(both, means + fixed)
    # And by cosine: the nearest direction to both sides is the nearest to their middle.
    unit = F.normalize(m, dim=1)
    assert torch.equal(
        (q @ unit.T + d @ unit.T).argmax(1), (mean_directions(q, d) @ unit.T).argmax(1)
    )


def test_all_axes_keep_the_cosines(tmp_path: Path) -> None:
    store = write_store(tmp_path, rows=40, width=6)
    points = np.empty((40, 6), dtype=np.float16)
    write_points(store, principal_axes(store, 6, seed=0), points)
    queries, documents = (side.astype(np.float32) for side in (store.queries, store.documents))
    pairs = mean_directions(torch.from_numpy(queries), torch.from_numpy(documents)).numpy()
    found = points.astype(np.float32) @ points.astype(np.float32).T
    np.testing.assert_allclose(found, pairs @ pairs.T, atol=4e-3)


def test_few_axes_are_those_in_which_vectors_are_longest(tmp_path: Path) -> None:
    flat = np.array([[3, 0, 0.1], [0, 2, 0.1], [3, 2, 0.1], [-3, 1, 0.1]])
    store = write_store(tmp_path, vectors=flat / np.linalg.norm(flat, axis=1, keepdims=True))
    axes = principal_axes(store, 2, seed=0)
    assert axes[2].norm() < 0.1
    torch.testing.assert_close(axes.T @ axes, torch.eye(2))


def test_no_more_axes_are_taken_than_there_are(tmp_path: Path) -> None:
    assert principal_axes(write_store(tmp_path, rows=9, width=6), 128, seed=0).shape == (6, 6)
