"""Search of the documents with the highest inner products: exact, or by faiss's inverted file."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embedkit import rng
from embedkit.data.exact_search import Best, ExactSearch, best_by, dot_products, ordered
from embedkit.data.faiss_library import load_faiss, moved, runs_on
from embedkit.distributed.progress import track_progress
from embedkit.mining.corpus import Ids
from embedkit.mining.settings import MiningSettings
from embedkit.storage.atomic import written_aside

Scores = NDArray[np.float32]
_TRAINED_ON = 40
"""Number of vectors that each list's centre is learned from; faiss warns below 39."""
_BLOCK_BYTES = 2**28
"""Number of bytes of vectors in memory at a time while the lists are filled."""
_GPU_COUNT = 2048
"""Largest number of documents that faiss finds for a query on a GPU."""


torch_best = best_by(dot_products)
"""Search of a block by a matrix product and a partial sort."""


def faiss_best(device: torch.device) -> Best:
    """Return faiss's own exact search of a block, which runs on a GPU if its build supports one."""
    faiss = load_faiss("search")
    gpu = (faiss.StandardGpuResources(),) if runs_on(faiss, device) else ()

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
        self, vectors: NDArray[Any], folder: Path, settings: MiningSettings, device: torch.device
    ) -> None:
        self._faiss, self._vectors = load_faiss("search"), vectors
        folder.mkdir(exist_ok=True)
        most = max(1, len(vectors) // _TRAINED_ON)
        self.lists = min(settings.lists or 4 * round(len(vectors) ** 0.5), most)
        self.probes = min(settings.probes or max(8, self.lists // 16), self.lists)
        whole = folder / "whole.index"
        if not whole.exists():
            self._build(whole, folder, settings.seed)
        index = self._faiss.read_index(str(whole))
        index.nprobe = self.probes
        self._index, self._gpu = moved(self._faiss, index, device), runs_on(self._faiss, device)

    def top(self, queries: Scores, count: int) -> tuple[Scores, Ids]:
        """Return documents of each query as ``ExactSearch.top`` does."""
        most = _GPU_COUNT if self._gpu else count
        scores, numbers = self._index.search(queries, min(count, most, len(self._vectors)))
        found = ordered(torch.from_numpy(scores), torch.from_numpy(numbers), count)
        return found[0].numpy(), found[1].numpy()

    def _build(self, whole: Path, folder: Path, seed: int) -> None:
        from faiss.contrib.ondisk import merge_ondisk

        faiss, count = self._faiss, len(self._vectors)
        trained = folder / "trained.index"
        with track_progress("filling lists with documents", count) as advance:
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
