"""Counts of the negatives that queries are scored against, as metrics of a step."""

from dataclasses import dataclass

import torch
from torch import Tensor

COUNTS = ("correct", "asking", "live", "text", "label", "surrogate", "hard", "mass")
"""Names of the sums over queries that ``counted`` returns, and ``metrics`` divides, in order."""


@dataclass(frozen=True, slots=True, eq=False)
class Masks:
    """Documents that are no negatives of a query, by the first reason that holds.

    Without in-batch negatives, the documents of other rows have none of these reasons, and are
    excluded. Shapes: ``(queries, documents)``.
    """

    by_text: Tensor
    """They are known to answer the query, as its own positive does, or have its text."""
    by_label: Tensor
    """They share the query's label."""
    by_surrogate: Tensor | None
    """The surrogate's filter drops them."""
    excluded: Tensor
    """All documents that are no negatives."""


def counted(scores: Tensor, positives: Tensor, masks: Masks, own: Tensor) -> Tensor:
    """Return the ``COUNTS`` of a block of queries, summed over them, in the dtype of ``scores``.

    ``correct`` counts the queries whose positive scores at least as high as every negative, among
    those that have a negative, which ``asking`` counts. ``live`` counts pairs of a query and a
    negative; ``text``, ``label`` and ``surrogate`` those that are masked. ``mass`` is the softmax
    of the negatives, to which the gradient of their scores is proportional, and ``hard`` the part
    of those that came with their query.

    Shapes: scores and ``own`` ``(q, n)``, the latter true where a document came with a query;
    positives ``(q,)``; the result ``(C,)``.
    """
    live = ~masks.excluded
    asking = live.any(dim=1)
    beaten = (scores > scores.gather(1, positives[:, None])) & live
    correct = asking & ~beaten.any(dim=1)
    # Every query's own positive is masked by its text.
    by_text = masks.by_text.sum() - len(positives)
    dropped = masks.by_surrogate
    by_surrogate = by_text.new_zeros(()) if dropped is None else dropped.sum()
    compared = live.scatter(1, positives[:, None], True)
    shares = scores.masked_fill(~compared, float("-inf")).softmax(dim=1) * live
    sums = [correct.sum(), asking.sum(), live.sum(), by_text, masks.by_label.sum(), by_surrogate]
    return torch.stack([each.to(scores) for each in (*sums, (shares * own).sum(), shares.sum())])


def metrics(sums: Tensor, queries: int, *, filtering: bool) -> dict[str, Tensor]:
    """Return the metrics that follow from ``COUNTS`` summed over all ``queries`` of a batch.

    These are ``accuracy``, the share of the queries with a negative whose positive scores at least
    as high as every negative, and 0 if no query has one; ``negatives``, their number for a query;
    ``no_negatives``, the share of the queries that have none; ``masked_text`` and
    ``masked_label``, the number of documents for a query that are no negatives for this reason;
    ``hard_share``, the share of the gradient of negatives' scores that goes to a query's own hard
    negatives; and, if the surrogate is ``filtering``, ``masked_surrogate`` likewise and
    ``filtered``, the share of the negatives that the filter drops.
    """
    correct, asking, live, text, label, surrogate, hard, mass = sums
    told = {
        "accuracy": correct / asking.clamp(min=1),
        "negatives": live / queries,
        "no_negatives": 1 - asking / queries,
        "masked_text": text / queries,
        "masked_label": label / queries,
        "hard_share": hard / mass.clamp(min=torch.finfo(mass.dtype).tiny),
    }
    if filtering:
        told["masked_surrogate"] = surrogate / queries
        told["filtered"] = surrogate / (live + surrogate).clamp(min=1)
    return told
