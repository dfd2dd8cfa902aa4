"""Divide a source into batches: cells by k-means, equal clusters inside them, pooled leftovers.

Cells keep the work of a source of any size near linear, and let it be larger than memory: only a
cell is held at a time, and a split of many points goes through a file.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from embedkit import rng
from embedkit.clustering.backends import SAMPLED, Backend
from embedkit.clustering.balance import equal_clusters

_TARGET = 128
"""Number of batches that a cell should hold; twice as many are still divided in one piece."""
_BRANCHES = 256
"""Largest number of cells that a split makes."""
_BLOCK = 2**18
"""Number of points that are read at a time."""
_IN_MEMORY = 2**22
"""Largest number of points whose reordered copies lie in memory: 1 GiB of 128 dimensions."""


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """Points that lie together. Shapes: points ``(n, p)``, fp16; their row numbers ``(n,)``."""

    points: NDArray[np.float16]
    rows: NDArray[np.int64]


def divide(
    points: NDArray[np.float16], size: int, backend: Backend, *, seed: int, scratch: Path
) -> NDArray[np.int64]:
    """Return all rows, one batch of ``size`` after the other; the last ``n % size`` are in none.

    ``scratch`` is a folder for points that do not fit into memory.

    Shapes: points ``(n, p)``, unit-norm, which may be memory-mapped -> ``(n,)``.
    """
    batches: list[NDArray[np.int64]] = []
    left = np.arange(len(points))
    rounds = 0
    while len(left) >= size:
        pool = Cell(points if rounds == 0 else points[left], left)
        over = []
        for number, cell in enumerate(split(pool, size, backend, seed=seed, scratch=scratch)):
            draw = rng.fold_in(seed, "cell", rounds, number)
            clusters = equal_clusters(_unit(cell.points, backend), size, backend, seed=draw)
            order = torch.argsort(clusters, stable=True).cpu().numpy()
            loose = len(order) % size
            over.append(cell.rows[order[:loose]])
            batches.append(cell.rows[order[loose:]])
        left, rounds = np.sort(np.concatenate(over)), rounds + 1
    return np.concatenate([*batches, left])


def split(cell: Cell, size: int, backend: Backend, *, seed: int, scratch: Path) -> Iterator[Cell]:
    """Split ``cell`` until every part can be divided in one piece."""
    wanted = len(cell.rows) / (_TARGET * size)
    if wanted <= 2:
        yield cell
        return
    num = min(_BRANCHES, round(wanted))
    draw = rng.fold_in(seed, "split", len(cell.rows), int(cell.rows[0]))
    nearest = _nearest_centroids(cell.points, num, backend, draw)
    if np.bincount(nearest, minlength=num).max() > 0.9 * len(nearest):
        # The points are all alike: no split by nearness would ever end.
        nearest = np.arange(len(nearest), dtype=np.int64) * num // len(nearest)
    ordered = _sorted_by(nearest, cell, scratch)
    ends = np.bincount(nearest, minlength=num).cumsum()[:-1]
    parts = zip(np.split(ordered.points, ends), np.split(ordered.rows, ends), strict=True)
    for points, rows in parts:
        if len(rows):
            yield from split(Cell(points, rows), size, backend, seed=seed, scratch=scratch)


def allocate(shape: tuple[int, ...], scratch: Path) -> NDArray[Any]:
    """Return an fp16 array: in memory, or for many points in a file that has no name."""
    if shape[0] <= _IN_MEMORY:
        return np.empty(shape, dtype=np.float16)
    with tempfile.TemporaryFile(dir=scratch) as file:
        return np.memmap(file, np.float16, mode="w+", shape=shape)


def _unit(points: NDArray[np.float16], backend: Backend) -> Tensor:
    """Return points in fp32, of unit norm again, on the backend's device."""
    return F.normalize(torch.from_numpy(points.astype(np.float32)).to(backend.device), dim=1)


def _nearest_centroids(
    points: NDArray[np.float16], num: int, backend: Backend, draw: int
) -> NDArray[np.int64]:
    """Train ``num`` centroids, and return the number of each point's nearest one, ``(n,)``."""
    count = min(len(points), SAMPLED * num)
    sample = np.sort(rng.permuted(np.arange(count), len(points), draw))
    centroids = backend.train(_unit(points[sample], backend), num, seed=draw)
    nearest = np.empty(len(points), dtype=np.int64)
    for start in range(0, len(points), _BLOCK):
        block = _unit(points[start : start + _BLOCK], backend)
        numbers = backend.search(block, centroids, 1)[1][:, 0]
        nearest[start : start + _BLOCK] = numbers.cpu().numpy()
    return nearest


def _sorted_by(nearest: NDArray[np.int64], cell: Cell, scratch: Path) -> Cell:
    """Return the points of a cell, with those of one centroid side by side."""
    order = np.argsort(nearest, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    points = allocate(cell.points.shape, scratch)
    # Points are read in order, which a file wants.
    for start in range(0, len(order), _BLOCK):
        points[places[start : start + _BLOCK]] = cell.points[start : start + _BLOCK]
    return Cell(points, cell.rows[order])
