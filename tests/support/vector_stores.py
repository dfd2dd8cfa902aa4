"""Stores of vectors that no model made."""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedkit.data.vector_store import VectorStore


def random_vectors(rows: int, width: int, seed: int) -> NDArray[np.float64]:
    vectors = np.random.default_rng(seed).normal(size=(rows, width))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def write_store(
    folder: Path, *, rows: int = 40, width: int = 6, vectors: NDArray[np.float64] | None = None
) -> VectorStore:
    """Write ``vectors`` as both sides, or else random ones, of which each side has its own."""
    sides = [vectors, vectors]
    if vectors is None:
        sides = [random_vectors(rows, width, seed) for seed in (0, 1)]
    folder.mkdir(parents=True, exist_ok=True)
    for name, side in zip(("queries", "documents"), sides, strict=True):
        assert side is not None
        side.astype(np.float16).tofile(folder / f"{name}.f16")
        rows, width = side.shape
    (folder / "facts.json").write_text(json.dumps({"rows": rows, "width": width}))
    return VectorStore(folder)
