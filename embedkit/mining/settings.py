"""What mining is asked for: how many negatives, from which ranks, how far below the positive."""

from typing import Literal, Self, TypedDict

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from embedkit.config import Section

MarginKind = Literal["relative", "absolute", "none"]
Sampling = Literal["top", "random"]
SearchKind = Literal["torch", "faiss-flat", "faiss-ivf"]
StoreType = Literal["fp16", "fp32"]


class MiningOptions(TypedDict, total=False):
    """The fields of ``Mining``, all of which have a default."""

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


class Mining(Section):
    negatives: PositiveInt = 5
    """For each row, at most."""
    skip: NonNegativeInt = 0
    """Documents left out at the top of a query's ranking."""
    depth: PositiveInt = 100
    """The last rank that is looked at. Ranks count what may be a negative at all."""
    margin: float = Field(default=0.05, ge=0, allow_inf_nan=False)
    """How far below its row's positive a negative has to score. NV-Retriever (arXiv 2407.15831)
    found a relative 0.05 best."""
    margin_kind: MarginKind = "relative"
    """``relative``: a share of the positive's score; ``absolute``: a difference of scores."""
    sampling: Sampling = "top"
    """The best that are admitted, or any of them, drawn by the seed."""
    seed: int = 0
    search: SearchKind = "torch"
    """All but ``faiss-ivf`` are exact."""
    lists: PositiveInt | None = None
    """Of ``faiss-ivf``; ``None`` takes four times the root of the documents."""
    probes: PositiveInt | None = None
    """Lists that a query looks into. ``None``: a sixteenth, eight at least."""
    store: StoreType = "fp16"
    """Of the vectors on disk."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.skip >= self.depth:
            raise ValueError(f"skip {self.skip} leaves nothing of depth {self.depth}: raise depth")
        if self.negatives > self.depth - self.skip:
            raise ValueError(
                f"negatives {self.negatives} are more than the ranks from skip {self.skip} to "
                f"depth {self.depth}: raise depth"
            )
        if self.search != "faiss-ivf" and (self.lists or self.probes):
            raise ValueError(f"lists and probes are of faiss-ivf, not of {self.search}")
        return self
