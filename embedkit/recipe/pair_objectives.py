"""The objectives of fine-tuning on pairs: one loss, over plain or over contextual vectors."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, model_validator

from embedkit.config import Section


class InfoNCE(Section):
    """Cross-entropy of each query's positive against the documents of its batch."""

    temperature: PositiveFloat = 0.07
    symmetric: bool = False
    """Also score each positive against all queries, and take the mean of the two directions."""
    cross_device: bool = True
    """Score each query against the documents of every rank, not only its own."""
    false_negatives: Literal["off", "absolute", "relative"] = "off"
    """Drop a document from a query's negatives where the surrogate of ``data.batch_table`` scores
    it at least as high as the positive, less ``margin`` or less that share of the positive's
    score. Hard negatives have no stored vectors, and stay."""
    margin: float = Field(default=0.0, ge=0, lt=1)
    micro_batch_tokens: PositiveInt | None = None
    """Tokens encoded at a time under gradient caching, a text's context included. ``None`` turns
    gradient caching off."""
    matryoshka_dims: (
        Annotated[tuple[PositiveInt, ...], Field(min_length=1, strict=False)] | None
    ) = None
    """Widths, falling, to which vectors may later be cut: the loss becomes the mean of the losses
    of the vectors cut to each."""
    matryoshka_weights: Annotated[tuple[PositiveFloat, ...], Field(strict=False)] | None = None
    """What each of ``matryoshka_dims`` counts in that mean. ``None`` lets all count the same."""

    @model_validator(mode="after")
    def _margin_of_a_filter(self) -> Self:
        if self.margin and self.false_negatives == "off":
            raise ValueError(
                f'margin = {self.margin}: false_negatives is "off"; set it to "absolute" or '
                '"relative", or leave the margin out'
            )
        return self

    @model_validator(mode="after")
    def _falling_dims(self) -> Self:
        dims, weights = self.matryoshka_dims or (), self.matryoshka_weights
        if list(dims) != sorted(set(dims), reverse=True):
            raise ValueError(
                f"matryoshka_dims = {list(dims)}: each has to be less than the one before it"
            )
        if weights is not None and len(weights) != len(dims):
            raise ValueError(
                f"matryoshka_weights has {len(weights)} values for {len(dims)} matryoshka_dims: "
                "give each one, or leave the weights out"
            )
        return self


class Contrastive(InfoNCE):
    """Over the vectors of one encoder."""

    kind: Literal["contrastive"] = "contrastive"


class InContext(InfoNCE):
    """Over the vectors of two encoders, the second of which reads what the first made of J of the
    batch's own documents. The defaults are those of Morris and Rush (2024).
    """

    kind: Literal["contextual"]
    temperature: PositiveFloat = 0.02
    cross_device: bool = False
    """Each rank has a context of its own, and the paper shares no negatives between ranks."""


_KINDS = ("contrastive", "contextual")


def _kind_told(objective: Any) -> Any:
    """Tables with their kind, which a recipe may leave out."""
    if not isinstance(objective, dict):
        return objective
    kind = objective.get("kind", _KINDS[0])
    if kind not in _KINDS:
        raise ValueError(f"kind = {kind!r}: fine-tuning has {', '.join(_KINDS)}")
    return {**objective, "kind": kind}


PairObjective = Annotated[
    Annotated[Contrastive | InContext, Field(discriminator="kind")], BeforeValidator(_kind_told)
]
