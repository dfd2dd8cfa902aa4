"""Contextual batches: how hard they are beside the published ones, and what cutting costs.

Quality is measured on real pairs (``open/code_docstring`` under ``$EMBEDKIT_DATA``) with the
starter's MiniLM; their vectors are kept under ``$EMBEDKIT_CACHE``, so that a second run is quick.
The cost is measured on points around random centres, at three sizes, and projected to the 29
sources of the paper.

Usage::

    EMBEDKIT_DATA=... python benchmarks/cluster.py [--pairs 14000] [--rows 1000000] [--remark TEXT]

``--pairs 0`` measures the cost alone, which needs no data. The result is written to
``benchmarks/results/cluster.md``, or ``cluster_cuda.md`` where there is a GPU.
"""

from needs import require

if __name__ == "__main__":
    require("faiss", "faiss")

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import faiss
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from rich.console import Console

from embedkit import distributed, rng
from embedkit.clustering import cde_baseline, cells, reduction
from embedkit.clustering.backends import Backend, FaissBackend, TorchBackend
from embedkit.clustering.embedding import embed
from embedkit.clustering.quality import measure
from embedkit.data.pairs.records import Records, open_records
from embedkit.data.vector_store import VectorStore
from embedkit.models import hub
from embedkit.storage import cache

SIZES = (64, 256)
DIMS = 128
BATCH = 512
SPREAD = 0.12
"""Of a coordinate around its centre, of which there are as many as for 330 points each."""
SOURCES = (
    65.0, 53.0, 38.7, 35.4, 9.9, 7.6, 7.5, 6.4, 6.1, 1.2, 0.8, 0.41, 0.34, 0.34, 0.28, 0.26, 0.21,
    0.20, 0.16, 0.13, 0.098, 0.098, 0.082, 0.082, 0.066, 0.066, 0.066, 0.033, 0.016,
)  # fmt: skip
"""Millions of pairs in each set of the unsupervised mixture (CDE paper, appendix)."""
RESULTS = Path(__file__).parent / "results"

Batches = Sequence[NDArray[np.int64]]


def vectors(pairs: int) -> VectorStore:
    """The vectors of ``pairs`` pairs, drawn from the source."""
    source = open_records("open/code_docstring")
    drawn = np.sort(rng.permuted(np.arange(pairs), len(source), rng.fold_in(0, "benchmark")))
    rows = [{"query": each.query, "positive": each.positive} for each in source.take(drawn)]
    records = Records.from_rows(rows, name="code_docstring")
    surrogate = hub.load("starter", device=distributed.local_device())
    content, identity = records.table.facts.content[:16], surrogate.identity[:16]
    folder = cache.root() / "benchmarks" / f"{content}-{identity}"
    return embed(records, surrogate, folder, Console(stderr=True))


def ours(store: VectorStore, size: int, backend: Backend) -> Batches:
    """Our batches of a source."""
    axes = reduction.principal_axes(store, DIMS, seed=0)
    points = np.empty((len(store), DIMS), dtype=np.float16)
    reduction.write_points(store, axes, points)
    with tempfile.TemporaryDirectory() as scratch:
        order = cells.cut(points, size, backend, seed=0, scratch=Path(scratch))
    return full(order, size)


def theirs(store: VectorStore, size: int, backend: Backend, *, near: bool) -> Batches:
    """The published batches of a source."""
    queries, documents = np.array(store.queries), np.array(store.documents)
    clusters = cde_baseline.published_clusters(queries, documents, size, backend, seed=0)
    return cde_baseline.packed(clusters, documents, size, seed=0, near=near)


def at_random(store: VectorStore, size: int) -> Batches:
    """Batches drawn from all pairs."""
    return full(np.random.default_rng(0).permutation(len(store)), size)


def full(order: NDArray[np.int64], size: int) -> Batches:
    """The full batches in an order of all rows, of which each is there once."""
    assert (np.bincount(order, minlength=len(order)) == 1).all(), "a row is not there once"
    return list(order[: len(order) // size * size].reshape(-1, size))


def quality(store: VectorStore, device: torch.device) -> list[str]:
    """A table of the ways, on the same vectors."""
    lines = [
        "| batch | way | batches | cohesion | mean negative | hardest negative | false negatives | "
        "CPU s |",
        "|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    in_torch, in_faiss = TorchBackend(device), FaissBackend(device)
    for size in SIZES:
        ways: dict[str, Callable[[], Batches]] = {
            "random": partial(at_random, store, size),
            "published, clusters in drawn order": partial(
                theirs, store, size, in_faiss, near=False
            ),
            "published, clusters in greedy tour": partial(theirs, store, size, in_faiss, near=True),
            "ours, faiss": partial(ours, store, size, in_faiss),
            "ours, torch": partial(ours, store, size, in_torch),
        }
        for name, way in ways.items():
            began = time.process_time()
            batches = way()
            spent = time.process_time() - began
            assert {len(each) for each in batches} == {size}
            found = measure(store.queries, store.documents, batches, device)
            lines.append(
                f"| {size} | {name} | {len(batches)} | {found.cohesion.mean():.3f} | "
                f"{found.negative.mean():.3f} | {found.hardest.mean():.3f} | "
                f"{found.false.mean():.3f} | {spent:.1f} |"
            )
            print(lines[-1], flush=True)
    return lines


def points_around_centres(rows: int) -> NDArray[np.float16]:
    """Unit vectors around random centres, as many in all as there are rows for 330 each."""
    generator = torch.Generator().manual_seed(0)
    num = max(1, rows // 330)
    centres = F.normalize(torch.randn(num, DIMS, generator=generator), dim=1)
    points = np.empty((rows, DIMS), dtype=np.float16)
    for start in range(0, rows, 2**17):
        homes = torch.randint(num, (min(2**17, rows - start),), generator=generator)
        noise = SPREAD * torch.randn(len(homes), DIMS, generator=generator)
        points[start : start + len(homes)] = F.normalize(centres[homes] + noise, dim=1).half()
    return points


def costs(rows: int, backend: Backend) -> list[tuple[int, float, float]]:
    """Rows, seconds by the clock, and seconds of all threads, at three sizes."""
    found = []
    for count in (rows // 4, rows // 2, rows):
        points = points_around_centres(count)
        wall, busy = time.perf_counter(), time.process_time()
        with tempfile.TemporaryDirectory() as scratch:
            order = cells.cut(points, BATCH, backend, seed=0, scratch=Path(scratch))
        found.append((count, time.perf_counter() - wall, time.process_time() - busy))
        full(order, BATCH)
        print(backend.name, found[-1], flush=True)
    return found


def cost_lines(
    name: str, found: Sequence[tuple[int, float, float]], device: torch.device
) -> list[str]:
    """Rows of the table of costs, and what they come to for the paper's sources."""
    rows, clock, busy = (np.array(each) for each in zip(*found, strict=True))
    # Threads of other work make a CPU's clock long; a GPU's work costs its CPU next to nothing.
    seconds = clock if device.type == "cuda" else busy
    power, scale = np.polyfit(np.log(rows), np.log(seconds), 1)
    projected = sum(np.exp(scale) * (millions * 1e6) ** power for millions in SOURCES)
    lines = [
        f"| {name} | {count:,} | {count // BATCH} | {wall:.1f} | {spent:.1f} |"
        for count, wall, spent in found
    ]
    total = sum(SOURCES)
    return [
        *lines,
        f"| {name} | {total:.0f} M in {len(SOURCES)} sources, projected | "
        f"{total * 1e6 / BATCH:,.0f} | | {projected:,.0f} ({projected / 3600:.1f} h; "
        f"~ rows^{power:.2f}) |",
    ]


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=14_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--remark", default="", help="What else the machine did, for the record.")
    options = parser.parse_args()
    device = distributed.local_device()
    measured = []
    if options.pairs:
        measured = [
            f"## Hardness: {options.pairs:,} pairs of open/code_docstring, all-MiniLM-L6-v2",
            "",
            *quality(vectors(options.pairs), device),
            "",
        ]
    cost = [
        line
        for backend in (TorchBackend(device), FaissBackend(device))
        for line in cost_lines(backend.name, costs(options.rows, backend), device)
    ]
    where = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor()
    packages = f"torch {torch.__version__}, faiss {faiss.__version__}, numpy {np.__version__}"
    page = [
        "# Contextual batches",
        "",
        f"Written by `benchmarks/cluster.py`, {datetime.now(UTC):%Y-%m-%d}; {where or 'CPU'}, "
        f"{os.cpu_count()} cores, {torch.get_num_threads()} threads; {packages}."
        + (f" {options.remark}" if options.remark else ""),
        "",
        *measured,
        f"## Cost: points of {DIMS} dimensions in batches of {BATCH}",
        "",
        "Every batch is exactly full and every row is there once. CPU s are those of all threads:",
        "on an idle machine the clock shows less, beside other work more. Embedding comes on top.",
        "The projection does not see that sources beyond 16.8 M rows are split twice: by count of",
        "products, not by measurement, that adds about a tenth to theirs. It goes by CPU s,",
        "and on a GPU by the clock.",
        "",
        "| backend | rows | batches | clock s | CPU s |",
        "|---|---:|---:|---:|---:|",
        *cost,
        "",
    ]
    name = "cluster_cuda.md" if device.type == "cuda" else "cluster.md"
    (RESULTS / name).write_text("\n".join(page), encoding="utf-8")


if __name__ == "__main__":
    main()
