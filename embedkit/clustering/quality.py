"""Measures on whole surrogate vectors how hard a table's batches and random ones are."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from embedkit import rng
from embedkit.data.batch_table import SourceBatches

_MEASURED = 256
"""Number of batches that are measured, drawn from all batches of a source."""


@dataclass(frozen=True, slots=True, eq=False)
class Quality:
    """Measures of hardness of some batches. Shapes: b batches, r rows in all of them."""

    cohesion: NDArray[np.float64]
    """Mean cosine of a batch's pairs to their common mean, ``(b,)``."""
    negative: NDArray[np.float64]
    """Mean similarity of each query to the documents of the other rows, ``(r,)``."""
    hardest: NDArray[np.float64]
    """Similarity of each query to the nearest document of another row, ``(r,)``."""
    false: NDArray[np.bool_]
    """Whether that document is at least as near as the query's own, ``(r,)``."""


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """The batches of a source beside random ones. Shapes: m batches are measured."""

    batches: SourceBatches
    measured: NDArray[np.int64]
    """Numbers of the measured batches, ``(m,)``; a short batch is never among them."""
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
    ours = [batches[number] for number in measured.tolist()]
    return Comparison(
        batches,
        measured,
        random=measure(store.queries, store.documents, drawn, device),
        ours=measure(store.queries, store.documents, ours, device),
    )


def measure(
    queries: NDArray[np.float16],
    documents: NDArray[np.float16],
    batches: Iterable[NDArray[np.int64]],
    device: torch.device,
) -> Quality:
    """Measure every batch by itself; a batch of one row has no negatives and is left out.

    Shapes: queries and documents ``(n, D)``, unit-norm; each batch holds numbers of their rows.
    """
    cohesion, negative, hardest, false = [], [np.empty(0)], [np.empty(0)], [np.empty(0, np.bool_)]
    for rows in batches:
        if len(rows) < 2:
            continue
        q, d = (torch.from_numpy(side[rows]).to(device).float() for side in (queries, documents))
        pairs = F.normalize(q + d, dim=1)
        cohesion.append((pairs @ F.normalize(pairs.mean(0), dim=0)).mean().item())
        scores = q @ d.T
        positive = scores.diagonal().clone()
        batch_negative = (scores.sum(1) - positive) / (len(scores) - 1)
        batch_hardest = scores.fill_diagonal_(-torch.inf).max(1).values
        negative.append(batch_negative.double().cpu().numpy())
        hardest.append(batch_hardest.double().cpu().numpy())
        false.append((batch_hardest >= positive).cpu().numpy())
    return Quality(
        np.array(cohesion), np.concatenate(negative), np.concatenate(hardest), np.concatenate(false)
    )
