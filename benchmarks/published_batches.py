"""The batches of a table beside those of the published way, source by source.

Random batches, the published ones and ours are measured as the report of ``embedkit cluster`` does
it, on the surrogate's whole vectors. The published way's cost grows with the square of a source, so
a source of more than ``--limit`` rows is left out, and so is one of a single batch.

Usage::

    python benchmarks/published_batches.py DIR [--limit 50000]

``DIR`` is what ``embedkit cluster`` wrote. Each run adds to
``benchmarks/results/published_batches.md``.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import cde_baseline
import faiss
import harness
import numpy as np
import torch

from embedkit import BatchTable, distributed, rng
from embedkit.clustering.quality import compare, measure
from embedkit.clustering.report import numbers_of, rows_of
from embedkit.data.batch_table import SourceBatches

COLUMNS = ("source", "way", "batches", "size", "cohesion", "mean negative", "hardest negative",
           "false negatives", "clusters", "of a batch from its largest")  # fmt: skip
LEGEND = """\
The published way is paired k-means, clusters end to end along a greedy tour, and batches taken off
that line. Its clusters are given as smallest, median and largest. What the other columns mean is
said in the report of `embedkit cluster`."""


def rows_of_source(
    batches: SourceBatches, device: torch.device, *, seed: int
) -> list[tuple[str, ...]]:
    """Return the two rows of the report, and that of the published way between them."""
    comparison = compare(batches, device, seed=seed)
    random, ours = rows_of(comparison)
    seed = rng.fold_in(seed, "report", batches.facts.content)
    # Read whole, once: the steps of this way all want everything.
    store = batches.vectors
    queries, documents = np.array(store.queries), np.array(store.documents)
    clusters = cde_baseline.published_clusters(queries, documents, batches.size, seed=seed)
    packed = cde_baseline.packed(clusters, documents, batches.size, seed=seed, near=True)
    measured = [packed[int(number)] for number in comparison.measured]
    num = -(-len(clusters) // batches.size)
    low, middle, high = np.percentile(np.bincount(clusters, minlength=num), (0, 50, 100))
    published = (
        *(batches.facts.name, "published", str(len(packed)), str(batches.size)),
        *numbers_of(measure(queries, documents, measured, device)),
        f"{low:.0f}/{middle:.0f}/{high:.0f}",
        f"{cde_baseline.largest_share(packed, clusters):.0%}",
    )
    return [(*random, "", ""), published, (*ours, "", "")]


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = harness.make_parser(__doc__, "published_batches.md")
    parser.add_argument(
        "table", type=Path, metavar="DIR", help="Output folder of embedkit cluster."
    )
    parser.add_argument(
        "--limit", type=int, default=50_000, help="Rows of the largest source that is compared."
    )
    return parser.parse_args(words)


def main() -> None:
    """Measure every source, and add to the results."""
    options, device = read_options(), distributed.local_device()
    table = BatchTable.open(options.table)
    surrogate, seed = table.header["surrogate"], table.header["settings"]["seed"]
    rows = []
    for batches in table.sources.values():
        if len(batches) > 1 and batches.facts.rows <= options.limit:
            rows += rows_of_source(batches, device, seed=seed)
            print(*rows[-2], flush=True)
    harness.append_section(
        options.results,
        "Contextual batches beside the published ones",
        f"{harness.stamp(device, faiss, np)}; surrogate {surrogate['name']} "
        f"({surrogate['identity'][:12]}), table {table.hash[:12]}.",
        harness.markdown(COLUMNS, rows, text=2),
        LEGEND,
    )


if __name__ == "__main__":
    main()
