"""Batches of one source cut in three ways, and how hard each way is."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embedkit import rng
from embedkit.clustering.backends import Backend
from embedkit.clustering.cde_baseline import own_share, packed, published_clusters
from embedkit.clustering.quality import Quality, measure
from embedkit.data.batch_table import SourceBatches

COMPARED_ROWS = 50_000
"""Up to here a source is also cut in the published way, whose cost grows with the square."""
_MEASURED = 256
"""Batches that are looked at, drawn from all of a source."""


@dataclass(frozen=True, slots=True, eq=False)
class Published:
    """The published way: clusters of any size, and batches cut off the line of them."""

    quality: Quality
    cluster_sizes: NDArray[np.int64]
    own_share: float
    """Of a batch, from its largest cluster."""


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """One source. ``published`` is ``None`` where the source is too large or one batch."""

    name: str
    rows: int
    sizes: NDArray[np.int64]
    """Of our batches."""
    left_out: int
    random: Quality
    published: Published | None
    ours: Quality


def compare(
    batches: SourceBatches, backend: Backend, *, seed: int, limit: int = COMPARED_ROWS
) -> Comparison:
    """Measure our batches of a source, those drawn at random, and those of the published way."""
    store, facts = batches.vectors, batches.facts
    size, rows = batches.size, facts.rows
    seed = rng.fold_in(seed, "report", facts.content)
    count = rows // size
    looked = np.sort(rng.permuted(np.arange(min(_MEASURED, count)), count, seed))
    places = looked[:, None] * size + np.arange(size)
    drawn = rng.permuted(places.reshape(-1), rows, rng.fold_in(seed, "random")).reshape(-1, size)
    published = None
    if len(batches) > 1 and rows <= limit:
        published = _published(batches, looked, backend, seed)
    sizes = [size] * count + [rows - count * size] * (len(batches) > count)
    return Comparison(
        name=facts.name,
        rows=rows,
        sizes=np.array(sizes),
        left_out=len(batches.left_out),
        random=measure(store.queries, store.documents, list(drawn), backend.device),
        published=published,
        ours=measure(
            store.queries, store.documents, [batches[int(each)] for each in looked], backend.device
        ),
    )


def _published(
    batches: SourceBatches, looked: NDArray[np.int64], backend: Backend, seed: int
) -> Published:
    store = batches.vectors
    # Read whole, once: the steps of this way all want everything.
    queries, documents = np.array(store.queries), np.array(store.documents)
    clusters = published_clusters(queries, documents, batches.size, backend, seed=seed)
    every = packed(clusters, documents, batches.size, seed=seed, near=True)
    some = [every[int(each)] for each in looked]
    return Published(
        measure(queries, documents, some, backend.device),
        np.bincount(clusters, minlength=-(-len(clusters) // batches.size)),
        own_share(every, clusters),
    )


def mean(values: NDArray[np.float64] | NDArray[np.bool_]) -> float:
    """The mean; nan of nothing."""
    return float(values.mean()) if len(values) else float("nan")
