"""The same search by faiss: flat, or by an inverted file whose lists stay on disk."""

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from embedkit import rng
from embedkit.errors import UserError
from embedkit.mining.corpus import Ids
from embedkit.mining.search import Best, Scores, filled, torch_best
from embedkit.mining.stages import stage
from embedkit.storage.atomic import written_aside

_TRAINED_ON = 40
"""Vectors a list that its centre is learned from; faiss warns below 39."""
_BLOCK = 2**28
"""Bytes of vectors in memory at a time while the lists are filled."""
_GPU_COUNT = 2048
"""The most that faiss finds for a query on a GPU."""


def load_faiss() -> Any:
    """The module faiss.

    Raises:
        UserError: it is not installed.
    """
    try:
        return importlib.import_module("faiss")
    except ImportError:
        raise UserError(
            'faiss is not installed: pip install "embedkit-neobert[faiss]", or [gpu], or search '
            "with torch"
        ) from None


def flat_best(faiss: Any, device: torch.device) -> Best:
    """The best of a block by faiss's own exact search, on the GPU if its build knows one."""
    gpu = faiss.StandardGpuResources() if _on_gpu(faiss, device) else None

    def best(queries: Tensor, documents: Tensor, count: int) -> tuple[Tensor, Tensor]:
        if gpu is not None and count > _GPU_COUNT:
            return torch_best(queries, documents, count)
        given = queries.cpu().numpy(), documents.cpu().numpy(), count
        metric = faiss.METRIC_INNER_PRODUCT
        found = (
            faiss.knn(*given, metric=metric)
            if gpu is None
            else faiss.knn_gpu(gpu, *given, metric=metric)
        )
        scores, places = map(torch.from_numpy, found)
        return scores.to(queries.device), places.to(queries.device)

    return best


class IvfSearch:
    """Looks into the lists whose centres are nearest to a query. The lists are memory-mapped.

    Building goes on where a killed process left off.

    Args:
        faiss: the module.
        vectors: of the documents, ``(N, D)``, memory-mapped.
        folder: of the index, for this search alone.
        lists: how many; ``None`` takes four times the root of N, and always at most one for every
            forty documents.
        probes: lists that a query looks into; ``None`` takes a sixteenth, eight at least.
        seed: of the sample that the centres are learned from.
        device: a GPU takes the whole index into its memory.
        console: where progress goes.
    """

    def __init__(
        self,
        faiss: Any,
        vectors: NDArray[Any],
        folder: Path,
        *,
        lists: int | None,
        probes: int | None,
        seed: int,
        device: torch.device,
        console: Console,
    ) -> None:
        self._faiss, self._vectors, self._folder = faiss, vectors, folder
        folder.mkdir(exist_ok=True)
        most = max(1, len(vectors) // _TRAINED_ON)
        self.lists = min(lists or 4 * round(len(vectors) ** 0.5), most)
        self.probes = min(probes or max(8, self.lists // 16), self.lists)
        whole = folder / "whole.index"
        if not whole.exists():
            self._build(whole, seed, console)
        self._index = faiss.read_index(str(whole))
        self._index.nprobe = self.probes
        self._gpu = _on_gpu(faiss, device)
        if self._gpu:
            self._index = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, self._index)

    def top(self, queries: Scores, count: int) -> tuple[Scores, Ids]:
        most = _GPU_COUNT if self._gpu else count
        scores, numbers = self._index.search(queries, min(count, most, len(self._vectors)))
        return filled(scores, numbers, count)

    def _build(self, whole: Path, seed: int, console: Console) -> None:
        from faiss.contrib.ondisk import merge_ondisk

        faiss, folder, count = self._faiss, self._folder, len(self._vectors)
        trained = folder / "trained.index"
        with stage(console, "filling lists with documents", count) as advance:
            if not trained.exists():
                self._write(self._trained(seed), trained)
            step = max(1, _BLOCK // (4 * self._vectors.shape[1]))
            blocks = []
            for start in range(0, count, step):
                block = self._vectors[start : start + step]
                blocks.append(folder / f"{start}.index")
                if not blocks[-1].exists():
                    index = faiss.read_index(str(trained))
                    numbers = np.arange(start, start + len(block))
                    index.add_with_ids(block.astype(np.float32), numbers)
                    self._write(index, blocks[-1])
                advance(len(block))
        index = faiss.read_index(str(trained))
        with _on_standard_error():
            merge_ondisk(index, list(map(str, blocks)), str(folder / "lists"))
        self._write(index, whole)

    def _trained(self, seed: int) -> Any:
        faiss, (count, width) = self._faiss, self._vectors.shape
        wanted = min(count, self.lists * _TRAINED_ON)
        drawn = rng.permuted(np.arange(wanted), count, rng.fold_in(seed, "lists"))
        metric = faiss.METRIC_INNER_PRODUCT
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, self.lists, metric)
        index.cp.seed, index.cp.spherical = seed % 2**31, True
        index.train(self._vectors[np.sort(drawn)].astype(np.float32))
        return index

    def _write(self, index: Any, path: Path) -> None:
        """Write an index that is there whole or not at all."""
        with written_aside(path) as aside:
            self._faiss.write_index(index, str(aside))


@contextmanager
def _on_standard_error() -> Iterator[None]:
    """What faiss says below Python while it merges is no result of ours."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _on_gpu(faiss: Any, device: torch.device) -> bool:
    return device.type == "cuda" and getattr(faiss, "get_num_gpus", int)() > 0
