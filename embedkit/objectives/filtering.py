"""Filter of false negatives among a batch's documents, by vectors of a surrogate model."""

from collections.abc import Callable

import torch
from torch import Tensor

from embedkit.objectives.losses import similarity
from embedkit.recipe import InfoNCE

_ROUNDING = 1e-6
"""Tolerance for the fp32 rounding of a product of unit vectors, so that a document equal to the
positive is dropped too."""


class Filter:
    """Filter that drops a document from a query's negatives if the surrogate scores it as high as
    the positive (Morris and Rush, 2024, equation 4).

    Args:
        surrogate: surrogate's unit vectors of this rank's queries and positives, ``(q, 2, S)``.
        documents: number of this rank's documents; the first q are the positives, and the rest are
            hard negatives, which have no surrogate vectors.
        across: function that gathers the rows of all ranks.
        config: settings with the margin, and whether it is absolute or relative.
    """

    def __init__(
        self,
        surrogate: Tensor,
        documents: int,
        across: Callable[[Tensor], tuple[Tensor, int]],
        config: InfoNCE,
    ) -> None:
        queries, positives = surrogate.unbind(dim=1)
        wide = torch.promote_types(surrogate.dtype, torch.float32)
        scores = (queries.to(wide) * positives.to(wide)).sum(dim=1)
        share = scores.abs() if config.false_negatives == "relative" else 1.0
        unknown = positives.new_full((documents - len(positives), positives.shape[1]), torch.nan)
        self._queries, _ = across(queries)
        self._documents, _ = across(torch.cat([positives, unknown]))
        # The score from which a document is dropped, for each query.
        self._lowest, _ = across(scores - config.margin * share - _ROUNDING)

    def dropped(self, queries: Tensor | slice, documents: Tensor | slice) -> Tensor:
        """Return a mask, true where the filter drops a document from a query's negatives.

        Shapes: ``(len(queries), len(documents))``, by their numbers over all ranks.
        """
        scores = similarity(self._queries[queries], self._documents[documents], 1.0)
        # A comparison with NaN is false, so that documents without a vector stay negatives.
        return scores >= self._lowest[queries, None]
