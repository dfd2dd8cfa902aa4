"""Contextual batches: how hard they are beside the published ones, and what making them costs.

Hardness is measured on real pairs (``open/code_docstring`` under ``$EMBEDKIT_DATA``) with the
starter's MiniLM; their vectors are kept under ``$EMBEDKIT_CACHE``, so that a second run is quick.
The cost is measured on points around random centres, at three sizes, and projected to the 29
sources of the paper.

Usage::

    EMBEDKIT_DATA=... python benchmarks/cluster.py [--pairs 14000] [--rows 1000000] [--remark TEXT]

Without ``$EMBEDKIT_DATA``, or with ``--pairs 0``, the cost alone is measured. Each run adds to
``benchmarks/results/cluster.md``.
"""

from needs import require

if __name__ == "__main__":
    require("faiss", "faiss")

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

import cde_baseline
import faiss
import harness
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from embedkit import distributed, rng
from embedkit.clustering import cells, reduction
from embedkit.clustering.backends import Backend, FaissBackend, TorchBackend, open_backend
from embedkit.clustering.quality import measure
from embedkit.clustering.settings import BackendName
from embedkit.data.pairs.records import Records, open_records
from embedkit.data.vector_store import VectorStore, store_vectors
from embedkit.models import hub
from embedkit.storage import cache

SIZES = (64, 256)
DIMS = 128
BATCH = 512
SPREAD = 0.12
"""Standard deviation of a coordinate around its centre."""
POINTS_PER_CENTRE = 330
SOURCES = (
    65.0, 53.0, 38.7, 35.4, 9.9, 7.6, 7.5, 6.4, 6.1, 1.2, 0.8, 0.41, 0.34, 0.34, 0.28, 0.26, 0.21,
    0.20, 0.16, 0.13, 0.098, 0.098, 0.082, 0.082, 0.066, 0.066, 0.066, 0.033, 0.016,
)  # fmt: skip
"""Millions of pairs in each set of the unsupervised mixture (CDE paper, appendix)."""
QUALITY_COLUMNS = ("batch", "way", "batches", "cohesion", "mean negative", "hardest negative",
                   "false negatives", "CPU s")  # fmt: skip
COST_COLUMNS = ("backend", "rows", "batches", "clock s", "CPU s")
COST_REMARK = """\
Every batch is exactly full and every row is there once. CPU s are those of all threads:
on an idle machine the clock shows less, beside other work more. Embedding comes on top.
The projection does not see that sources beyond 16.8 M rows are split twice: by count of
products, not by measurement, that adds about a tenth to theirs. It goes by CPU s,
and on a GPU by the clock."""

Batches = Sequence[NDArray[np.int64]]


def vectors_of(pairs: int) -> VectorStore:
    """Return the vectors of ``pairs`` pairs, drawn from the source."""
    source = open_records("open/code_docstring")
    drawn = np.sort(rng.permuted(np.arange(pairs), len(source), rng.fold_in(0, "benchmark")))
    rows = [{"query": pair.query, "positive": pair.positive} for pair in source.take(drawn)]
    records = Records.from_rows(rows, name="code_docstring")
    surrogate = hub.load("starter", device=distributed.local_device())
    content, identity = records.table.facts.content[:16], surrogate.identity[:16]
    folder = cache.root() / "benchmarks" / f"{content}-{identity}"
    return store_vectors(records, surrogate.encode, folder, width=surrogate.width)


def our_batches(store: VectorStore, size: int, backend: Backend) -> Batches:
    """Make our batches of a source."""
    axes = reduction.principal_axes(store, DIMS, seed=0)
    points = np.empty((len(store), DIMS), dtype=np.float16)
    reduction.write_points(store, axes, points)
    with tempfile.TemporaryDirectory() as scratch:
        order = cells.divide(points, size, backend, seed=0, scratch=Path(scratch))
    return full(order, size)


def published_batches(store: VectorStore, size: int, *, near: bool) -> Batches:
    """Make the published batches of a source."""
    queries, documents = np.array(store.queries), np.array(store.documents)
    clusters = cde_baseline.published_clusters(queries, documents, size, seed=0)
    return cde_baseline.packed(clusters, documents, size, seed=0, near=near)


def random_batches(store: VectorStore, size: int) -> Batches:
    """Draw batches from all pairs."""
    return full(np.random.default_rng(0).permutation(len(store)), size)


def full(order: NDArray[np.int64], size: int) -> Batches:
    """Return the full batches in an order of all rows, which must hold every row once."""
    assert (np.bincount(order, minlength=len(order)) == 1).all(), "a row is not there once"
    return list(order[: len(order) // size * size].reshape(-1, size))


def quality_rows(store: VectorStore, device: torch.device) -> list[list[str]]:
    """Measure each way of making batches on the same vectors, at two sizes."""
    rows = []
    for size in SIZES:
        ways: dict[str, Callable[[], Batches]] = {
            "random": partial(random_batches, store, size),
            "published, clusters in drawn order": partial(
                published_batches, store, size, near=False
            ),
            "published, clusters in greedy tour": partial(
                published_batches, store, size, near=True
            ),
            "ours, faiss": partial(our_batches, store, size, FaissBackend(device)),
            "ours, torch": partial(our_batches, store, size, TorchBackend(device)),
        }
        for name, way in ways.items():
            began = time.process_time()
            batches = way()
            seconds = time.process_time() - began
            assert {len(batch) for batch in batches} == {size}
            quality = measure(store.queries, store.documents, batches, device)
            measured = (quality.cohesion, quality.negative, quality.hardest, quality.false)
            means = [f"{values.mean():.3f}" for values in measured]
            rows.append([str(size), name, str(len(batches)), *means, f"{seconds:.1f}"])
            print(*rows[-1], flush=True)
    return rows


def points_around_centres(rows: int) -> NDArray[np.float16]:
    """Draw unit vectors around random centres."""
    generator = torch.Generator().manual_seed(0)
    num = max(1, rows // POINTS_PER_CENTRE)
    centres = F.normalize(torch.randn(num, DIMS, generator=generator), dim=1)
    points = np.empty((rows, DIMS), dtype=np.float16)
    for start in range(0, rows, 2**17):
        homes = torch.randint(num, (min(2**17, rows - start),), generator=generator)
        noise = SPREAD * torch.randn(len(homes), DIMS, generator=generator)
        points[start : start + len(homes)] = F.normalize(centres[homes] + noise, dim=1).half()
    return points


@dataclass(frozen=True)
class Cost:
    """Seconds that making the batches of a source of ``rows`` points takes."""

    rows: int
    clock: float
    cpu: float
    """Seconds of all threads."""


def cost_of(rows: int, backend: Backend) -> Cost:
    """Measure what making the batches of ``rows`` points costs."""
    points = points_around_centres(rows)
    clock, cpu = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as scratch:
        order = cells.divide(points, BATCH, backend, seed=0, scratch=Path(scratch))
    cost = Cost(rows, time.perf_counter() - clock, time.process_time() - cpu)
    full(order, BATCH)
    print(type(backend).__name__, cost, flush=True)
    return cost


def cost_rows(rows: int, name: BackendName, device: torch.device) -> list[list[str]]:
    """Measure the cost at three sizes, and project it to the paper's sources."""
    backend = open_backend(name, device)
    costs = [cost_of(count, backend) for count in (rows // 4, rows // 2, rows)]
    # Threads of other work make a CPU's clock long; a GPU's work costs its CPU next to nothing.
    seconds = [cost.clock if device.type == "cuda" else cost.cpu for cost in costs]
    power, scale = np.polyfit(np.log([cost.rows for cost in costs]), np.log(seconds), 1)
    projected = sum(np.exp(scale) * (millions * 1e6) ** power for millions in SOURCES)
    total = sum(SOURCES)
    return [
        *(
            [name, f"{c.rows:,}", str(c.rows // BATCH), f"{c.clock:.1f}", f"{c.cpu:.1f}"]
            for c in costs
        ),
        [
            name,
            f"{total:.0f} M in {len(SOURCES)} sources, projected",
            f"{total * 1e6 / BATCH:,.0f}",
            "",
            f"{projected:,.0f} ({projected / 3600:.1f} h; ~ rows^{power:.2f})",
        ],
    ]


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = harness.make_parser(__doc__, "cluster.md")
    parser.add_argument(
        "--pairs",
        type=int,
        default=14_000 if os.environ.get("EMBEDKIT_DATA") else 0,
        help="Pairs that hardness is measured on. Default: 14,000, without $EMBEDKIT_DATA none.",
    )
    parser.add_argument(
        "--rows", type=int, default=1_000_000, help="Points of the largest size that is timed."
    )
    parser.add_argument(
        "--remark", default="", help="Note on the machine's other load, kept with the results."
    )
    return parser.parse_args(words)


def main() -> None:
    """Measure, and add to the results."""
    options, device = read_options(), distributed.local_device()
    paragraphs = []
    if options.pairs:
        paragraphs = [
            f"### Hardness: {options.pairs:,} pairs of open/code_docstring, all-MiniLM-L6-v2",
            harness.markdown(
                QUALITY_COLUMNS, quality_rows(vectors_of(options.pairs), device), text=2
            ),
        ]
    costs = [row for name in get_args(BackendName) for row in cost_rows(options.rows, name, device)]
    harness.append_section(
        options.results,
        "Contextual batches",
        f"{harness.stamp(device, faiss, np)}. {options.remark}".rstrip(),
        *paragraphs,
        f"### Cost: points of {DIMS} dimensions in batches of {BATCH}",
        COST_REMARK,
        harness.markdown(COST_COLUMNS, costs),
    )


if __name__ == "__main__":
    main()
