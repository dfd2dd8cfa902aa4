"""Random vectors, and what a search of them should find."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Search(Protocol):
    def top(self, queries: NDArray[Any], count: int) -> tuple[NDArray[Any], NDArray[Any]]: ...


def unit(rows: int, width: int = 8, seed: int = 0) -> NDArray[np.float32]:
    vectors = np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def assert_best(found: Search, queries: NDArray[Any], documents: NDArray[Any], count: int) -> None:
    """Against a sort of all scores in double precision."""
    all_scores = queries.astype(np.float64) @ documents.astype(np.float64).T
    expected = np.argsort(-all_scores, axis=1)[:, :count]
    scores, numbers = found.top(queries, count)
    np.testing.assert_array_equal(numbers, expected)
    np.testing.assert_allclose(scores, np.take_along_axis(all_scores, expected, 1), atol=1e-6)
