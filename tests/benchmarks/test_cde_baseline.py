"""The published way of making batches, to compare with."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from cde_baseline import largest_share, packed, published_clusters
from support.vector_stores import random_vectors, write_store


def test_clusters_may_have_any_size(tmp_path: Path) -> None:
    store = write_store(tmp_path, rows=200, width=4)
    clusters = published_clusters(np.array(store.queries), np.array(store.documents), 16, seed=0)
    assert clusters.shape == (200,)
    assert clusters.max() < 13
    assert len(set(np.bincount(clusters).tolist())) > 1


def test_pairs_that_lie_together_are_one_cluster() -> None:
    # Four groups of 16 pairs; those of a group are nearly the same, and no two groups are near.
    centres = np.eye(8)[:4].repeat(16, axis=0), np.eye(8)[4:].repeat(16, axis=0)
    noise = 0.02 * np.random.default_rng(0).normal(size=(2, 64, 8))
    queries, documents = ((centres[side] + noise[side]).astype(np.float16) for side in (0, 1))
    clusters = published_clusters(queries, documents, 16, seed=0).reshape(4, 16)
    assert (clusters == clusters[:, :1]).all()
    assert sorted(clusters[:, 0]) == [0, 1, 2, 3]


def test_batches_are_cut_off_the_line_of_clusters() -> None:
    clusters = np.array([0, 1, 0, 1, 2, 2, 2, 1])
    documents = random_vectors(8, 4, seed=0).astype(np.float16)
    batches = packed(clusters, documents, 3, seed=0, near=False)
    assert [len(rows) for rows in batches] == [3, 3]
    line = clusters[np.concatenate(batches)].tolist()
    # Each cluster stands in one piece.
    assert sum(a != b for a, b in pairwise(line)) == len(set(line)) - 1


def test_the_tour_goes_to_the_nearest_cluster_that_is_left() -> None:
    # Four clusters of two, at 0, 10, 30 and 90 degrees: from an end the tour is the line itself.
    angles = np.radians([0, 0, 10, 10, 30, 30, 90, 90])
    documents = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float16)
    clusters = np.array([2, 2, 0, 0, 3, 3, 1, 1])
    tours = set()
    for seed in range(20):
        batches = packed(clusters, documents, 2, seed=seed, near=True)
        tours.add(tuple(int(rows[0]) // 2 for rows in batches))
    assert tours == {(0, 1, 2, 3), (1, 0, 2, 3), (2, 1, 0, 3), (3, 2, 1, 0)}


def test_the_share_of_the_largest_cluster_is_counted() -> None:
    clusters = np.array([0, 0, 0, 1, 1, 2])
    assert largest_share([np.array([0, 1, 3]), np.array([2, 4, 5])], clusters) == pytest.approx(0.5)
