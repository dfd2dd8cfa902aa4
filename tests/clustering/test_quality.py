"""How hard batches are."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.vector_stores import random_vectors, write_store

from embedkit.clustering.quality import measure

CPU = torch.device("cpu")


def test_a_batch_is_measured_as_by_hand() -> None:
    queries = np.array([[1, 0], [0, 1], [0.6, 0.8]], dtype=np.float16)
    documents = np.array([[0.8, 0.6], [0, 1], [1, 0]], dtype=np.float16)
    # Scores: [.8 0 1], [.6 1 0], [.96 .8 .6]; the diagonal are the pairs' own.
    found = measure(queries, documents, [np.arange(3)], CPU)
    np.testing.assert_allclose(found.hardest, [1, 0.6, 0.96], atol=1e-3)
    np.testing.assert_allclose(found.negative, [0.5, 0.3, 0.88], atol=1e-3)
    assert found.false.tolist() == [True, False, True]


def test_numbers_are_those_of_a_direct_computation(tmp_path: Path) -> None:
    store = write_store(tmp_path, rows=30, width=5)
    batches = list(np.random.default_rng(0).permutation(30).reshape(3, 10))
    found = measure(store.queries, store.documents, batches, CPU)
    q, d = (np.array(side, dtype=np.float64) for side in (store.queries, store.documents))
    hardest, negative, false, cohesion = [], [], [], []
    for rows in batches:
        pairs = np.array([(q[i] + d[i]) / np.linalg.norm(q[i] + d[i]) for i in rows])
        centre = pairs.mean(0) / np.linalg.norm(pairs.mean(0))
        cohesion.append(np.mean([pair @ centre for pair in pairs]))
        for i in rows:
            scores = [q[i] @ d[j] for j in rows if j != i]
            hardest.append(max(scores))
            negative.append(sum(scores) / 9)
            false.append(max(scores) >= q[i] @ d[i])
    np.testing.assert_allclose(found.hardest, hardest, atol=1e-5)
    np.testing.assert_allclose(found.negative, negative, atol=1e-5)
    np.testing.assert_allclose(found.cohesion, cohesion, atol=1e-5)
    assert found.false.tolist() == false


def test_a_duplicate_of_the_own_document_is_a_false_negative() -> None:
    vectors = random_vectors(4, 8, seed=0).astype(np.float16)
    vectors[3] = vectors[0]
    assert measure(vectors, vectors, [np.arange(4)], CPU).false.tolist() == [
        True,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize("batches", [[], [np.array([2])]])
def test_batches_without_negatives_have_nothing_to_measure(
    batches: list[NDArray[np.int64]],
) -> None:
    vectors = random_vectors(4, 8, seed=0).astype(np.float16)
    assert len(measure(vectors, vectors, batches, CPU).hardest) == 0
