"""The objectives of fine-tuning on pairs: what a loss needs of a run, and the losses there are."""

import pkgutil
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    PositiveFloat,
    PositiveInt,
    SerializeAsAny,
    model_validator,
)

from embedkit.config import Section
from embedkit.errors import UserError
from embedkit.recipe.extensions import Kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a loss needs of a run: all that a run ever asks about its loss."""

    cross_device: bool = True
    """Whether the negatives of all ranks count. Otherwise every rank reads whole batches of its
    own where batches are contextual."""
    context: bool = False
    """Whether the model has two encoders, the second of which reads a text among documents."""
    surrogate_vectors: bool = False
    """Whether batches carry the stored vectors of ``data.batch_table``."""
    scores: bool = False
    """Whether batches carry the scores of ``columns.score``, which every source then has."""
    widths: tuple[int, ...] = ()
    """Widths, falling, to which vectors may be truncated once they are trained so."""


class PairObjective(Section):
    """A loss on pairs: the table ``[objective]``, without the code that computes it.

    A subclass names that code in ``implementation`` or overrides ``build``.
    """

    kind: str
    implementation: ClassVar[str] = ""
    """``module:Class`` of an object with the method ``backward`` of ``training.trainer.Objective``;
    the class is called with the section. It is a name, so that reading a recipe imports no torch.
    """

    @property
    def needs(self) -> Needs:
        """What the loss needs of a run."""
        return Needs()

    def build(self) -> Any:
        """Return the object that computes the loss.

        Raises:
            UserError: there is no such class.
        """
        try:
            implementation = pkgutil.resolve_name(self.implementation)
        except (ImportError, AttributeError, ValueError) as error:
            raise UserError(
                f"objective.kind = {self.kind!r}: {type(self).__name__}.implementation = "
                f"{self.implementation!r} cannot be loaded: {error}"
            ) from error
        return implementation(self)


class GivenObjective(PairObjective):
    """An object that Python code passes to ``finetune`` in place of a table."""

    kind: Literal["object"] = "object"
    identity: str = Field(min_length=1)
    """What the object says of itself, which changes with what it computes."""
    given: Any = Field(exclude=True, repr=False)

    @classmethod
    def around(cls, given: object) -> Self:
        """Wrap an object with a method ``backward`` and a string ``identity``.

        Raises:
            UserError: the object lacks one of them, or its ``needs`` are no ``Needs``.
        """
        name = type(given).__name__
        if isinstance(given, type) or not callable(getattr(given, "backward", None)):
            raise UserError(
                f"objective: {given!r:.60} is no object with a method backward(model, batch, *, "
                "key, scale)"
            )
        identity = getattr(given, "identity", None)
        if not isinstance(identity, str) or not identity:
            raise UserError(
                f"objective: {name} has no string identity: give it one that changes with what it "
                "computes, so that a run is never resumed with another loss"
            )
        needs = getattr(given, "needs", Needs())
        if not isinstance(needs, Needs):
            raise UserError(f"objective: {name}.needs is {needs!r:.60}: make it a Needs(...)")
        return cls(identity=identity, given=given)

    @property
    def needs(self) -> Needs:
        """What the object needs of a run."""
        return getattr(self.given, "needs", Needs())

    def build(self) -> Any:
        """Return the object."""
        return self.given


class InfoNCE(PairObjective):
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

    @property
    def needs(self) -> Needs:
        """What the loss needs of a run."""
        return Needs(
            cross_device=self.cross_device,
            surrogate_vectors=self.false_negatives != "off",
            widths=self.matryoshka_dims or (),
        )


class Contrastive(InfoNCE):
    """Over the vectors of one encoder."""

    kind: Literal["contrastive"] = "contrastive"
    implementation: ClassVar[str] = "embedkit.objectives.contrastive:ContrastiveObjective"


class InContext(InfoNCE):
    """Over the vectors of two encoders, the second of which reads what the first made of J of the
    batch's own documents. The defaults are those of Morris and Rush (2024).
    """

    kind: Literal["contextual"]
    implementation: ClassVar[str] = "embedkit.objectives.contextual:ContextualObjective"
    temperature: PositiveFloat = 0.02
    cross_device: bool = False
    """Each rank has a context of its own, and the paper shares no negatives between ranks."""

    @property
    def needs(self) -> Needs:
        """What the loss needs of a run."""
        return replace(super().needs, context=True)


OBJECTIVES = Kinds(
    "embedkit.objectives",
    PairObjective,
    {"contrastive": Contrastive, "contextual": InContext},
    default="contrastive",
)
"""The losses that ``objective.kind`` chooses among."""

AnyPairObjective = Annotated[SerializeAsAny[PairObjective], BeforeValidator(OBJECTIVES.resolve)]
