"""Filter of false negatives among a batch's documents, by vectors of a surrogate model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from embedkit.objectives.losses import similarity
from embedkit.recipe import InfoNCE

_ROUNDING = 1e-6
"""Tolerance for the fp32 rounding of a product of unit vectors, so that a document equal to the
positive is dropped too."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Filter that drops a document from a query's negatives if the surrogate scores it as high as
    the positive (Morris and Rush, 2024, equation 4).

    Shapes: Q queries and N documents over all ranks; queries ``(Q, S)`` and documents ``(N, S)``
    are the surrogate's unit vectors, with NaN for a document that has none; ``lowest`` ``(Q,)`` is
    the score from which a document is dropped.
    """

    queries: Tensor
    documents: Tensor
    lowest: Tensor

    @classmethod
    def over(
        cls,
        surrogate: Tensor,
        documents: int,
        across: Callable[[Tensor], tuple[Tensor, int]],
        config: InfoNCE,
    ) -> Self:
        """Build the filter from the surrogate's vectors of this rank's rows and of other ranks'.

        Args:
            surrogate: unit vectors of each query and its positive, ``(q, 2, S)``.
            documents: number of this rank's documents; the first q are the positives, and the rest
                are hard negatives, which have no surrogate vectors.
            across: function that gathers the rows of all ranks.
            config: settings with the margin, and whether it is absolute or relative.
        """
        queries, positives = surrogate.unbind(dim=1)
        wide = torch.promote_types(surrogate.dtype, torch.float32)
        scores = (queries.to(wide) * positives.to(wide)).sum(dim=1)
        share = scores.abs() if config.false_negatives == "relative" else 1.0
        unknown = positives.new_full((documents - len(positives), positives.shape[1]), torch.nan)
        return cls(
            queries=across(queries)[0],
            documents=across(torch.cat([positives, unknown]))[0],
            lowest=across(scores - config.margin * share - _ROUNDING)[0],
        )

    def dropped(self, queries: Tensor | slice, documents: Tensor | slice) -> Tensor:
        """Return a mask, true where the filter drops a document from a query's negatives.

        Shapes: ``(len(queries), len(documents))``.
        """
        scores = similarity(self.queries[queries], self.documents[documents], 1.0)
        # A comparison with NaN is false, so that documents without a vector stay negatives.
        return scores >= self.lowest[queries, None]
