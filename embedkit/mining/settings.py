"""The settings of mining, which ``embedkit mine`` and ``embedkit.mine`` take by the same names."""

from typing import Literal, Self, TypedDict

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from embedkit.recipe import Dtype, DtypeSettings

MarginKind = Literal["relative", "absolute", "none"]
Sampling = Literal["top", "random"]
SearchKind = Literal["torch", "faiss-flat", "faiss-ivf"]
StoreType = Literal["fp16", "fp32"]


class MiningSettings(DtypeSettings):
    """Settings of mining: number of negatives, their ranks, and their margin to the positive."""

    negatives: PositiveInt = 5
    """Each row gets at most this many negatives."""
    skip: NonNegativeInt = 0
    """This many candidates at the top of each query's ranking are left out."""
    depth: PositiveInt = 100
    """Ranks beyond this one are not looked at. Ranks count only documents that may be negatives of
    the query."""
    margin: float = Field(default=0.05, ge=0, allow_inf_nan=False)
    """A negative has to score this far below its row's positive. NV-Retriever (arXiv 2407.15831)
    found a relative 0.05 best."""
    margin_kind: MarginKind = "relative"
    """The margin is a share of the positive's score (relative) or a difference of scores
    (absolute); none admits every candidate."""
    sampling: Sampling = "top"
    """top takes the best of the admitted candidates; random draws from all of them."""
    seed: int = 0
    """Random seed for sampling negatives and for training the IVF index."""
    search: SearchKind = "torch"
    """torch and faiss-flat search exactly, faiss-ivf approximately; both faiss searches need the
    extra faiss or gpu."""
    lists: PositiveInt | None = None
    """Number of lists in the IVF index (faiss-ivf only); four times the square root of the number
    of documents if it is not given."""
    probes: PositiveInt | None = None
    """Number of IVF lists that are searched for each query (faiss-ivf only); a sixteenth of the
    lists, and at least 8, if it is not given."""
    store: StoreType = "fp16"
    """The vectors are kept on disk in this type."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.negatives > self.depth - self.skip:
            raise ValueError(
                f"--negatives {self.negatives} are more than the ranks from --skip {self.skip} to "
                f"--depth {self.depth}; raise --depth"
            )
        if self.search != "faiss-ivf" and (self.lists or self.probes):
            raise ValueError(
                f"--lists and --probes are of faiss-ivf, not of --search {self.search}"
            )
        return self


class MiningOptions(TypedDict, total=False):
    """The types of ``MiningSettings`` as keyword arguments, for type checkers and editors."""

    negatives: int
    skip: int
    depth: int
    margin: float
    margin_kind: MarginKind
    sampling: Sampling
    seed: int
    search: SearchKind
    lists: int | None
    probes: int | None
    store: StoreType
    dtype: Dtype
