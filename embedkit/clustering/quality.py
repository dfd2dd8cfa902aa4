"""How hard batches are: measured on whole surrogate vectors, for any way of cutting."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Quality:
    """What was measured of some batches. Shapes: b batches, r rows in all of them."""

    cohesion: NDArray[np.float64]
    """Mean cosine of a batch's pairs to their common mean, ``(b,)``."""
    negative: NDArray[np.float64]
    """Each query's mean similarity to the documents of the other rows, ``(r,)``."""
    hardest: NDArray[np.float64]
    """Each query's similarity to the nearest of them, ``(r,)``."""
    false: NDArray[np.bool_]
    """Whether one of them is as near as the query's own document or nearer, ``(r,)``."""


def measure(
    queries: NDArray[np.float16],
    documents: NDArray[np.float16],
    batches: Sequence[NDArray[np.int64]],
    device: torch.device,
) -> Quality:
    """Look at every batch by itself; one of a single row has no negatives and is left out.

    Shapes: queries and documents ``(n, D)``, unit-norm; each batch holds rows of them.
    """
    measured = [
        _of_batch(_floats(queries[rows], device), _floats(documents[rows], device))
        for rows in batches
        if len(rows) > 1
    ]
    cohesion, negative, hardest, false = zip(*measured, strict=True) if measured else [()] * 4
    none = np.empty(0)
    return Quality(
        cohesion=np.array(cohesion),
        negative=np.concatenate([none, *negative]),
        hardest=np.concatenate([none, *hardest]),
        false=np.concatenate([none, *false]).astype(np.bool_),
    )


def _of_batch(
    queries: Tensor, documents: Tensor
) -> tuple[float, NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    pairs = F.normalize(queries + documents, dim=1)
    cohesion = (pairs @ F.normalize(pairs.mean(0), dim=0)).mean().item()
    scores = queries @ documents.T
    own = scores.diagonal().clone()
    negative = (scores.sum(1) - own) / (len(scores) - 1)
    hardest = scores.fill_diagonal_(-torch.inf).max(1).values
    return (
        cohesion,
        negative.double().cpu().numpy(),
        hardest.double().cpu().numpy(),
        (hardest >= own).cpu().numpy(),
    )


def _floats(vectors: NDArray[np.float16], device: torch.device) -> Tensor:
    return torch.from_numpy(vectors).to(device, torch.float32)
