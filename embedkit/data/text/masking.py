"""Which tokens are to be guessed, and what stands in their place."""

import numpy as np
from numpy.typing import NDArray

from embedkit import rng
from embedkit.recipe import MaskedLM
from embedkit.tokens.vocabulary import Vocabulary

_BY_MASK, _BY_RANDOM = 0.8, 0.9
"""Below the first, [MASK]; from there to the second, a random token; above, the token itself."""


def mask(
    ids: NDArray[np.int64], maskable: NDArray[np.bool_], vocabulary: Vocabulary,
    objective: MaskedLM, key: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # fmt: skip
    """Draw by ``key`` the tokens to be guessed: the ids that the model sees, and their places.

    Shapes: ``ids`` and ``maskable`` ``(T,)``; the result ``(T,)`` and ``(M,)``, in order.
    """
    drawn = rng.uniform(len(ids), rng.fold_in(key, "guess"))
    places = np.flatnonzero(maskable & (drawn < objective.rate))
    seen = ids.copy()
    seen[places] = vocabulary.mask
    if objective.replace == "80/10/10":
        fate = rng.uniform(len(ids), rng.fold_in(key, "fate"))[places]
        random = (fate >= _BY_MASK) & (fate < _BY_RANDOM)
        choice = rng.uniform(len(ids), rng.fold_in(key, "random"))[places[random]]
        ordinary = vocabulary.ordinary
        seen[places[random]] = ordinary[(choice * len(ordinary)).astype(np.int64)]
        kept = places[fate >= _BY_RANDOM]
        seen[kept] = ids[kept]
    return seen, places
