"""A whole source into batches."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from embedkit.clustering import cells
from embedkit.clustering.backends import Backend, FaissBackend, TorchBackend

CPU = torch.device("cpu")


def points(rows: int, groups: int = 40, spread: float = 0.15) -> NDArray[np.float16]:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(groups, 8, generator=generator)
    homes = torch.randint(groups, (rows,), generator=generator)
    noise = spread * torch.randn(rows, 8, generator=generator)
    return F.normalize(F.normalize(centres, dim=1)[homes] + noise, dim=1).half().numpy()


def cohesion(found: NDArray[np.float16], order: NDArray[np.int64], size: int) -> float:
    batches = order[: len(order) // size * size].reshape(-1, size)
    return float(np.linalg.norm(found[batches].astype(np.float64).mean(axis=1), axis=1).mean())


# Of size 2, 513 rows and more are split into cells first.
@pytest.mark.parametrize(
    ("rows", "size"), [(1, 2), (7, 8), (8, 8), (100, 8), (1500, 2), (1501, 4), (3000, 4)]
)
def test_every_row_is_there_once(rows: int, size: int, tmp_path: Path) -> None:
    order = cells.divide(points(rows), size, TorchBackend(CPU), seed=0, scratch=tmp_path)
    assert np.sort(order).tolist() == list(range(rows))
    assert list(tmp_path.iterdir()) == []


def test_cells_of_cells_hold_every_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "_BRANCHES", 3)
    backend = TorchBackend(CPU)
    whole = cells.Cell(points(3000), np.arange(3000))
    parts = list(cells.split(whole, 2, backend, seed=0, scratch=tmp_path))
    assert max(len(part.rows) for part in parts) <= 2 * 128 * 2
    rows = np.concatenate([part.rows for part in parts])
    assert np.sort(rows).tolist() == list(range(3000))
    assert all((part.points == whole.points[part.rows]).all() for part in parts)


def test_cells_cost_little_of_the_cohesion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, backend = points(3000), TorchBackend(CPU)
    by_cells = cells.divide(found, 4, backend, seed=0, scratch=tmp_path)
    monkeypatch.setattr(cells, "_TARGET", 10_000)
    in_one = cells.divide(found, 4, backend, seed=0, scratch=tmp_path)
    by_chance = cohesion(found, np.arange(3000), 4)
    whole = cohesion(found, in_one, 4) - by_chance
    assert cohesion(found, by_cells, 4) - by_chance > 0.95 * whole


def test_a_split_through_a_file_is_the_split_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, backend = points(1500), TorchBackend(CPU)
    in_memory = cells.divide(found, 2, backend, seed=0, scratch=tmp_path)
    monkeypatch.setattr(cells, "_IN_MEMORY", 100)
    monkeypatch.setattr(cells, "_BLOCK", 64)
    assert isinstance(cells.allocate((101, 8), tmp_path), np.memmap)
    through_a_file = cells.divide(found, 2, backend, seed=0, scratch=tmp_path)
    assert np.array_equal(in_memory, through_a_file)


def test_points_that_are_all_alike_are_cut_too(tmp_path: Path) -> None:
    alike = np.repeat(points(1), 1500, axis=0)
    order = cells.divide(alike, 2, TorchBackend(CPU), seed=0, scratch=tmp_path)
    assert np.sort(order).tolist() == list(range(1500))


@pytest.mark.parametrize("backend", [TorchBackend(CPU), FaissBackend(CPU)], ids=["torch", "faiss"])
def test_a_seed_makes_the_same_batches_again(backend: Backend, tmp_path: Path) -> None:
    first, again, other = (
        cells.divide(points(700), 2, backend, seed=seed, scratch=tmp_path) for seed in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_backends_agree_in_quality(tmp_path: Path) -> None:
    found = points(1600)
    in_torch, in_faiss = (
        cohesion(found, cells.divide(found, 16, backend, seed=0, scratch=tmp_path), 16)
        for backend in (TorchBackend(CPU), FaissBackend(CPU))
    )
    assert in_torch == pytest.approx(in_faiss, rel=0.02)
