"""Clusters of exactly one size: k-means whose centroids have prices.

A point goes to the centroid with the highest score minus price, and prices rise where more points
come than there is room for: the dual of assigning points to places at the highest total score.
What is left of imbalance in the end is rounded off point by point, the cheapest move first.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from embedkit.clustering.backends import Backend, means

CANDIDATES = 8
"""Nearest centroids that a point chooses from, unless all of them are full."""
_UPDATES = 6
"""Times that centroids move to the means of their equal clusters."""
_ROUNDS = 20
"""Changes of prices between two moves of the centroids."""


def equal_clusters(points: Tensor, size: int, backend: Backend, *, seed: int) -> Tensor:
    """Return the cluster of each point, -1 for the ``n % size`` points that lie furthest out.

    Shapes: points ``(n, p)``, fp32, unit-norm, on the backend's device; the result ``(n,)``, int64,
    has every number below ``n // size`` exactly ``size`` times.
    """
    num = len(points) // size
    clusters = torch.full((len(points),), -1, dtype=torch.int64, device=points.device)
    if num == 0:
        return clusters
    centroids = backend.train(points, num, seed=seed)
    kept = _nearest_rows(points, centroids, num * size, backend)
    if num == 1:
        clusters[kept] = 0
        return clusters
    points = points[kept]
    prices = points.new_zeros(num)
    for update in range(_UPDATES + 1):
        offers = Offers(*backend.search(points, centroids, min(CANDIDATES, num)))
        prices = settle(offers, prices, size)
        if update < _UPDATES:
            best, scores = offers.best(prices)
            centroids = means(points, best, scores, num)
    clusters[kept] = rounded(points, centroids, offers, prices, size)
    return clusters


@dataclass(frozen=True, slots=True)
class Offers:
    """Each point's nearest centroids. Shapes: both ``(n, candidates)``."""

    scores: Tensor
    centroids: Tensor

    def best(self, prices: Tensor) -> tuple[Tensor, Tensor]:
        """The centroid that each point takes at these prices, and its score there; ``(n,)``."""
        place = (self.scores - prices[self.centroids]).argmax(dim=1, keepdim=True)
        return self.centroids.gather(1, place)[:, 0], self.scores.gather(1, place)[:, 0]


def settle(offers: Offers, prices: Tensor, size: int) -> Tensor:
    """Prices at which every centroid is taken by about ``size`` points."""
    spread = (offers.scores[:, 0] - offers.scores[:, -1]).mean().item()
    for number in range(_ROUNDS):
        step = spread * 0.5 * 0.01 ** (number / _ROUNDS)
        counts = torch.bincount(offers.best(prices)[0], minlength=len(prices))
        prices = prices + step * (counts - size) / (counts + size)
    return prices


def rounded(points: Tensor, centroids: Tensor, offers: Offers, prices: Tensor, size: int) -> Tensor:
    """Give each centroid exactly ``size`` points, moving those that lose least. Shape ``(n,)``."""
    num = len(prices)
    clusters, _ = offers.best(prices)
    counts = torch.bincount(clusters, minlength=num)
    # Points only leave a cluster that is too full, and only for one that has room.
    rows = (counts[clusters] > size).nonzero().squeeze(1)
    values = points[rows] @ centroids.T - prices
    while (excess := (counts - size).clamp(min=0)).any():
        here = values.gather(1, clusters[rows, None])[:, 0]
        there, target = values.masked_fill(counts >= size, -torch.inf).max(dim=1)
        order = torch.argsort(here - there, stable=True)
        source, target = clusters[rows[order]], target[order]
        moves = _turns(source, num) < excess[source]
        moves[moves.clone()] = _turns(target[moves], num) < (size - counts)[target[moves]]
        clusters[rows[order[moves]]] = target[moves]
        counts = torch.bincount(clusters, minlength=num)
        still = counts[clusters[rows]] > size
        rows, values = rows[still], values[still]
    return clusters


def _turns(groups: Tensor, num: int) -> Tensor:
    """Return for each element the number of earlier ones in its group, ``(n,)``."""
    order = torch.argsort(groups, stable=True)
    counts = torch.bincount(groups, minlength=num)
    turns = torch.empty_like(groups)
    turns[order] = torch.arange(len(groups), device=groups.device) - (
        counts.cumsum(0) - counts
    ).repeat_interleave(counts)
    return turns


def _nearest_rows(points: Tensor, centroids: Tensor, count: int, backend: Backend) -> Tensor:
    """The ``count`` points that are nearest to a centroid, in their order."""
    scores, _ = backend.search(points, centroids, 1)
    return torch.argsort(scores[:, 0], descending=True, stable=True)[:count].sort().values
