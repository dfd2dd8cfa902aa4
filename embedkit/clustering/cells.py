"""A whole source into batches: cells by k-means, equal clusters inside them, leftovers pooled.

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
"""Batches that a cell is to hold; twice as many are still cut in one piece."""
_BRANCHES = 256
"""Cells that a split makes at most."""
_BLOCK = 2**18
"""Points read at a time."""
_IN_MEMORY = 2**22
"""Points whose copies in another order may lie in memory: 1 GiB of 128 dimensions."""


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """Points that lie together. Shapes: ``points`` ``(n, p)``, fp16; ``rows`` ``(n,)``, whose."""

    points: NDArray[np.float16]
    rows: NDArray[np.int64]


def cut(
    points: NDArray[np.float16], size: int, backend: Backend, *, seed: int, scratch: Path
) -> NDArray[np.int64]:
    """All rows, one batch of ``size`` after the other; the last ``n % size`` fill none.

    Args:
        points: ``(n, p)``, unit-norm; may be memory-mapped.
        size: rows of a batch.
        backend: does the arithmetic.
        seed: of every draw.
        scratch: a folder for files that are gone when this returns.
    """
    batches: list[NDArray[np.int64]] = []
    left = np.arange(len(points))
    rounds = 0
    while len(left) >= size:
        pool = Cell(points if rounds == 0 else points[left], left)
        over = []
        for number, cell in enumerate(cells(pool, size, backend, seed=seed, scratch=scratch)):
            draw = rng.fold_in(seed, "cell", rounds, number)
            clusters = equal_clusters(floats(cell.points, backend), size, backend, seed=draw)
            order = torch.argsort(clusters, stable=True).cpu().numpy()
            loose = len(order) % size
            over.append(cell.rows[order[:loose]])
            batches.append(cell.rows[order[loose:]])
        left, rounds = np.sort(np.concatenate(over)), rounds + 1
    return np.concatenate([*batches, left])


def cells(cell: Cell, size: int, backend: Backend, *, seed: int, scratch: Path) -> Iterator[Cell]:
    """Split ``cell`` until every part can be cut in one piece."""
    wanted = len(cell.rows) / (_TARGET * size)
    if wanted <= 2:
        yield cell
        return
    num = min(_BRANCHES, round(wanted))
    draw = rng.fold_in(seed, "split", len(cell.rows), int(cell.rows[0]))
    homes = _homes(cell.points, num, backend, draw)
    counts = np.bincount(homes, minlength=num)
    if counts.max() > 0.9 * len(homes):
        # Points that are all alike: no split by nearness would ever end.
        homes = np.arange(len(homes), dtype=np.int64) * num // len(homes)
        counts = np.bincount(homes, minlength=num)
    ordered = _ordered(cell, homes, scratch)
    ends = np.cumsum(counts)
    for start, end in zip(ends - counts, ends, strict=True):
        if end > start:
            part = Cell(ordered.points[start:end], ordered.rows[start:end])
            yield from cells(part, size, backend, seed=seed, scratch=scratch)


def floats(points: NDArray[np.float16], backend: Backend) -> Tensor:
    """Points in fp32 and of unit norm again, on the backend's device."""
    return F.normalize(torch.from_numpy(points.astype(np.float32)).to(backend.device), dim=1)


def _homes(points: NDArray[np.float16], num: int, backend: Backend, draw: int) -> NDArray[np.int64]:
    """The nearest of ``num`` centroids for each point, ``(n,)``."""
    count = min(len(points), SAMPLED * num)
    sample = np.sort(rng.permuted(np.arange(count), len(points), draw))
    centroids = backend.train(floats(points[sample], backend), num, seed=draw)
    homes = np.empty(len(points), dtype=np.int64)
    for start in range(0, len(points), _BLOCK):
        block = floats(points[start : start + _BLOCK], backend)
        homes[start : start + _BLOCK] = backend.search(block, centroids, 1)[1][:, 0].cpu().numpy()
    return homes


def _ordered(cell: Cell, homes: NDArray[np.int64], scratch: Path) -> Cell:
    """The same points, those of one home side by side."""
    order = np.argsort(homes, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    points = space(cell.points.shape, scratch)
    for start in range(0, len(order), _BLOCK):
        points[places[start : start + _BLOCK]] = cell.points[start : start + _BLOCK]
    return Cell(points, cell.rows[order])


def space(shape: tuple[int, ...], scratch: Path) -> NDArray[Any]:
    """Room for points: in memory, or for many of them in a file that has no name."""
    if shape[0] <= _IN_MEMORY:
        return np.empty(shape, dtype=np.float16)
    with tempfile.TemporaryFile(dir=scratch) as file:
        return np.memmap(file, np.float16, mode="w+", shape=shape)
