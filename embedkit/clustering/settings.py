"""The settings of clustering, for ``embedkit cluster`` and ``embedkit.cluster`` alike."""

from typing import Literal, TypedDict

from pydantic import Field, NonNegativeInt, PositiveInt

from embedkit.recipe import Dtype, DtypeSettings

SURROGATE = "thenlper/gte-large"
"""The model that embeds for the clustering in the paper (appendix G.2)."""

BackendName = Literal["torch", "faiss"]


class ClusteringSettings(DtypeSettings):
    """Settings for dividing the sources of a recipe into batches of near pairs."""

    dims: PositiveInt = 128
    """k-means works in this many principal axes of the surrogate's vectors."""
    max_tokens: int = Field(default=512, ge=3)
    """The surrogate reads at most this many tokens of a text, special tokens included."""
    short_batch: bool = False
    """The rows that fill no batch make a short batch, instead of being in none."""
    backend: BackendName = "torch"
    """This library computes the k-means; faiss needs the extra faiss or gpu."""
    seed: NonNegativeInt = 0
    """Random seed for everything that clustering draws."""


class ClusteringOptions(TypedDict, total=False):
    """The types of ``ClusteringSettings`` as keyword arguments, for type checkers and editors."""

    dims: int
    max_tokens: int
    short_batch: bool
    backend: BackendName
    seed: int
    dtype: Dtype
