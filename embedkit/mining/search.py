"""Search of the documents with the highest inner products: exact, or by faiss's inverted file."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from embedkit import rng
from embedkit.distributed.progress import track_progress
from embedkit.errors import UserError
from embedkit.mining.corpus import Ids
from embedkit.mining.settings import MiningSettings
from embedkit.storage.atomic import written_aside

Scores = NDArray[np.float32]
Best = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
"""Function of queries ``(q, D)``, documents ``(n, D)`` and k: the k best scores and their places,
both ``(q, k)``."""

_SCORES = {"cpu": 2**25, "cuda": 2**28}
_VALUES = _SCORES.copy()
"""Numbers of fp32 scores, and of values of documents' vectors, that exist at a time."""
_TRAINED_ON = 40
"""Number of vectors that each list's centre is learned from; faiss warns below 39."""
_BLOCK_BYTES = 2**28
"""Number of bytes of vectors in memory at a time while the lists are filled."""
_GPU_COUNT = 2048
"""Largest number of documents that faiss finds for a query on a GPU."""


class ExactSearch:
    """Exact search that walks over the documents block by block and keeps the best so far.

    Shapes: vectors of the documents ``(N, D)``, memory-mapped. Scores are computed in fp32.
    """

    def __init__(self, vectors: NDArray[Any], device: torch.device, best: Best) -> None:
        self._vectors, self._device, self._best = vectors, device, best

    def top(self, queries: Scores, count: int) -> tuple[Scores, Ids]:
        """Return the best documents of each query, best first.

        Shapes: queries ``(q, D)`` -> scores and numbers ``(q, count)``; where fewer were found,
        the numbers end in -1.
        """
        wanted = torch.from_numpy(queries).to(self._device)
        scores = wanted.new_empty(len(queries), 0)
        numbers = torch.empty(len(queries), 0, dtype=torch.int64, device=self._device)
        device, width = self._device.type, self._vectors.shape[1]
        step = max(1, min(_SCORES[device] // max(len(queries), 1), _VALUES[device] // width))
        for start in range(0, len(self._vectors), step):
            block = self._vectors[start : start + step].astype(np.float32)
            documents = torch.from_numpy(block).to(self._device)
            block_scores, places = self._best(wanted, documents, min(count, len(documents)))
            scores = torch.cat([scores, block_scores], dim=1)
            numbers = torch.cat([numbers, places + start], dim=1)
            scores, kept = scores.topk(min(count, scores.shape[1]), dim=1)
            numbers = numbers.gather(1, kept)
        return _ordered(scores.cpu().numpy(), numbers.cpu().numpy(), count)


def torch_best(queries: Tensor, documents: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Find the best documents of a block by a matrix product and a partial sort."""
    best = (queries @ documents.T).topk(count, dim=1)
    return best.values, best.indices


def load_faiss() -> Any:
    """Return the module faiss.

    Raises:
        UserError: faiss is not installed.
    """
    try:
        return importlib.import_module("faiss")
    except ImportError:
        raise UserError(
            'faiss is not installed: pip install "embedkit-neobert[faiss]", or [gpu], or search '
            "with torch"
        ) from None


def faiss_best(device: torch.device) -> Best:
    """Return faiss's own exact search of a block, which runs on a GPU if its build supports one."""
    faiss = load_faiss()
    gpu = (faiss.StandardGpuResources(),) if _on_gpu(faiss, device) else ()

    def best(queries: Tensor, documents: Tensor, count: int) -> tuple[Tensor, Tensor]:
        if gpu and count > _GPU_COUNT:
            return torch_best(queries, documents, count)
        search, arrays = faiss.knn_gpu if gpu else faiss.knn, (queries.cpu(), documents.cpu())
        found = search(*gpu, *map(np.asarray, arrays), count, metric=faiss.METRIC_INNER_PRODUCT)
        scores, places = (torch.from_numpy(array).to(queries.device) for array in found)
        return scores, places

    return best


class IvfSearch:
    """Search of the lists whose centres are nearest to a query; the lists are memory-mapped.

    There is at most one list for every forty documents. A killed process leaves its part of the
    index in ``folder`` to the next one. A GPU takes the whole index into its memory.

    Shapes: vectors of the documents ``(N, D)``, memory-mapped.
    """

    def __init__(
        self,
        vectors: NDArray[Any],
        folder: Path,
        settings: MiningSettings,
        device: torch.device,
        console: Console,
    ) -> None:
        self._faiss, self._vectors = load_faiss(), vectors
        folder.mkdir(exist_ok=True)
        most = max(1, len(vectors) // _TRAINED_ON)
        self.lists = min(settings.lists or 4 * round(len(vectors) ** 0.5), most)
        self.probes = min(settings.probes or max(8, self.lists // 16), self.lists)
        whole = folder / "whole.index"
        if not whole.exists():
            self._build(whole, folder, settings.seed, console)
        self._index = self._faiss.read_index(str(whole))
        self._index.nprobe = self.probes
        self._gpu = _on_gpu(self._faiss, device)
        if self._gpu:
            resources = self._faiss.StandardGpuResources()
            self._index = self._faiss.index_cpu_to_gpu(resources, 0, self._index)

    def top(self, queries: Scores, count: int) -> tuple[Scores, Ids]:
        """Return documents of each query as ``ExactSearch.top`` does."""
        most = _GPU_COUNT if self._gpu else count
        scores, numbers = self._index.search(queries, min(count, most, len(self._vectors)))
        return _ordered(scores, numbers, count)

    def _build(self, whole: Path, folder: Path, seed: int, console: Console) -> None:
        from faiss.contrib.ondisk import merge_ondisk

        faiss, count = self._faiss, len(self._vectors)
        trained = folder / "trained.index"
        with track_progress(console, "filling lists with documents", count) as advance:
            if not trained.exists():
                self._write(self._trained(seed), trained)
            step = max(1, _BLOCK_BYTES // (4 * self._vectors.shape[1]))
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
        with _stdout_to_stderr():
            merge_ondisk(index, list(map(str, blocks)), str(folder / "lists"))
        self._write(index, whole)

    def _trained(self, seed: int) -> Any:
        """Return an empty index whose centres are learned from a sample of the vectors."""
        faiss, (count, width) = self._faiss, self._vectors.shape
        sampled = min(count, self.lists * _TRAINED_ON)
        rows = rng.permuted(np.arange(sampled), count, rng.fold_in(seed, "lists"))
        metric = faiss.METRIC_INNER_PRODUCT
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, self.lists, metric)
        index.cp.seed, index.cp.spherical = seed % 2**31, True
        index.train(self._vectors[np.sort(rows)].astype(np.float32))
        return index

    def _write(self, index: Any, path: Path) -> None:
        with written_aside(path) as aside:
            self._faiss.write_index(index, str(aside))


Search = ExactSearch | IvfSearch


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Send what faiss prints in C++ while it merges to standard error: it is no result."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def _on_gpu(faiss: Any, device: torch.device) -> bool:
    return device.type == "cuda" and getattr(faiss, "get_num_gpus", int)() > 0


def _ordered(scores: Scores, numbers: Ids, count: int) -> tuple[Scores, Ids]:
    """Return ``count`` columns, best first, equal scores by number; what was not found is -1."""
    scores = np.where(numbers < 0, np.float32(-np.inf), scores)
    order = np.lexsort((numbers, -scores), axis=1)
    lacking = ((0, 0), (0, count - scores.shape[1]))
    return (
        np.pad(np.take_along_axis(scores, order, 1), lacking, constant_values=-np.inf),
        np.pad(np.take_along_axis(numbers, order, 1), lacking, constant_values=-1),
    )
