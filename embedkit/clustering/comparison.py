"""The batches of one source beside random ones: how hard both are."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from embedkit import rng
from embedkit.clustering.quality import Quality, measure
from embedkit.data.batch_table import SourceBatches

_MEASURED = 256
"""Batches that are measured, drawn from all of a source."""


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """What was measured of one source. Shapes: b batches, of which m are measured."""

    name: str
    rows: int
    sizes: NDArray[np.int64]
    """Rows of each of our batches, ``(b,)``."""
    left_out: int
    """Rows that are in no batch."""
    measured: NDArray[np.int64]
    """Numbers of the batches that are measured, ``(m,)``; a short batch is never among them."""
    random: Quality
    ours: Quality


def compare(batches: SourceBatches, device: torch.device, *, seed: int) -> Comparison:
    """Measure our batches of a source, and as many batches of that size drawn at random."""
    store, facts = batches.vectors, batches.facts
    size, rows = batches.size, facts.rows
    seed = rng.fold_in(seed, "report", facts.content)
    count = rows // size
    measured = np.sort(rng.permuted(np.arange(min(_MEASURED, count)), count, seed))
    places = measured[:, None] * size + np.arange(size)
    drawn = rng.permuted(places.reshape(-1), rows, rng.fold_in(seed, "random")).reshape(-1, size)
    ours = [batches[int(number)] for number in measured]
    return Comparison(
        name=facts.name,
        rows=rows,
        sizes=np.array([size] * count + [rows - count * size] * (len(batches) > count)),
        left_out=len(batches.left_out),
        measured=measured,
        random=measure(store.queries, store.documents, list(drawn), device),
        ours=measure(store.queries, store.documents, ours, device),
    )
