"""False negatives among a batch's documents, by the vectors that a surrogate gave them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from embedkit.objectives.losses import similarity
from embedkit.recipe import InfoNCE

_ROUNDING = 1e-6
"""Of a product of unit vectors in fp32: what equals the positive may not slip below it."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Drops a document from a query's negatives where the surrogate finds it as near as the
    positive (Morris and Rush, 2024, equation 4).

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
        """Share what this rank knows of its own rows.

        Args:
            surrogate: vectors of each query and its positive, ``(q, 2, S)``.
            documents: how many this rank has; the first q are the positives, and the rest, hard
                negatives, were embedded by no surrogate.
            across: gathers the rows of all ranks.
            config: has the margin, and of what.
        """
        queries, positives = surrogate.unbind(dim=1)
        wide = torch.promote_types(surrogate.dtype, torch.float32)
        own = (queries.to(wide) * positives.to(wide)).sum(dim=1)
        share = own.abs() if config.false_negatives == "relative" else 1.0
        unknown = positives.new_full((documents - len(positives), positives.shape[1]), torch.nan)
        return cls(
            queries=across(queries)[0],
            documents=across(torch.cat([positives, unknown]))[0],
            lowest=across(own - config.margin * share - _ROUNDING)[0],
        )

    def dropped(self, queries: Tensor | slice, documents: Tensor | slice) -> Tensor:
        """Which of some documents are no negatives of which of some queries."""
        scores = similarity(self.queries[queries], self.documents[documents], 1.0)
        # NaN is never as high: what has no vector stays.
        return scores >= self.lowest[queries, None]
