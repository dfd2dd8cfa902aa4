"""Objectives of fine-tuning on pairs: recipe sections of losses, and what a loss needs of a run."""

import pkgutil
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, SerializeAsAny
from pydantic.functional_validators import BeforeValidator, model_validator

from embedkit.config import Section
from embedkit.errors import UserError
from embedkit.recipe.extensions import Kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Requirements of a loss. A run depends on its loss in no other way."""

    cross_device: bool = True
    """Whether the documents of all ranks are negatives. Otherwise, with contextual batches, each
    rank reads a whole batch every step."""
    context: bool = False
    """Whether the model has two encoders, the second of which reads a text among documents."""
    surrogate_vectors: bool = False
    """Whether batches carry the surrogate's vectors, stored in ``data.batch_table``."""
    known_answers: bool = False
    """Whether batches carry the answers that other rows of a source have to their queries."""
    negatives: bool = False
    """Whether the loss learns from negatives alone, so that a source that can have none is
    refused."""
    scores: bool = False
    """Whether batches carry the scores of ``columns.score``, which every source must then have."""
    teacher: bool = False
    """Whether batches carry a teacher's scores of each document, from ``columns.scores``, which
    every source must then have."""
    hard_negatives: bool = True
    """Whether the loss may use hard negatives. Otherwise a source that has any is refused."""
    widths: tuple[int, ...] = ()
    """Widths, in falling order, to which the trained vectors may be truncated."""


class PairObjective(Section):
    """Settings of a loss on pairs, the table ``[objective]``, without the code that computes it.

    A subclass names that code in ``implementation`` or overrides ``build``.
    """

    kind: str
    implementation: ClassVar[str] = ""
    """``module:Class`` of the objective, which has the method ``backward`` of
    ``training.interfaces.Objective``; the class is called with this section. It is given by name,
    so that reading a recipe does not import torch."""

    @property
    def needs(self) -> Needs:
        """Requirements of the loss."""
        return Needs()

    def build(self) -> Any:
        """Return the object that computes the loss."""
        try:
            implementation = pkgutil.resolve_name(self.implementation)
        except (ImportError, AttributeError, ValueError) as error:
            raise UserError(
                f"objective.kind = {self.kind!r}: {type(self).__name__}.implementation = "
                f"{self.implementation!r} cannot be loaded: {error}"
            ) from error
        return implementation(self)


class GivenObjective(PairObjective):
    """Objective that Python code passes to ``finetune`` as an object instead of a table."""

    kind: Literal["object"] = "object"
    identity: str
    """Identity that the object states, which has to change whenever its computation changes."""
    given: Any = Field(exclude=True, repr=False)
    """The object, with a method ``backward``."""

    @property
    def needs(self) -> Needs:
        return getattr(self.given, "needs", Needs())

    def build(self) -> Any:
        return self.given


def section_of(given: object) -> PairObjective:
    """Return an objective's section: itself, or one around an object that computes a loss.

    Raises:
        UserError: the object lacks the method ``backward`` or a string ``identity``, or its
            ``needs`` is not a ``Needs``.
    """
    if isinstance(given, PairObjective):
        return given
    name = type(given).__name__
    if isinstance(given, type) or not callable(getattr(given, "backward", None)):
        raise UserError(
            f"objective: {given!r:.60} is no object with a method backward(model, batch, *, key, "
            "scale)"
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
    return GivenObjective(identity=identity, given=given)


class InfoNCE(PairObjective):
    """Cross-entropy of each query's positive against the documents of its batch."""

    temperature: PositiveFloat = 0.07
    symmetric: bool = False
    """Also score each positive against all queries, and take the mean of the two directions."""
    cross_device: bool = True
    """Score each query against the documents of all ranks, not of its own rank only."""
    known_answers: Literal["batch", "source"] = "source"
    """A document is no negative of a query if it is the positive of any row with the query's text:
    of any row of the batch, or of any row of the source."""
    false_negatives: Literal["off", "absolute", "relative"] = "off"
    """Filter that drops a document from a query's negatives if the surrogate of
    ``data.batch_table`` scores it at least as high as the positive's score minus ``margin``
    (``absolute``), or minus ``margin`` times that score (``relative``). Hard negatives have no
    stored vectors, and stay."""
    margin: float = Field(default=0.0, ge=0, lt=1)
    """Margin of the filter that ``false_negatives`` selects."""
    micro_batch_tokens: PositiveInt | None = None
    """Number of tokens encoded at a time with gradient caching, a text's context included. ``None``
    turns gradient caching off."""
    matryoshka_dims: (
        Annotated[tuple[PositiveInt, ...], Field(min_length=1, strict=False)] | None
    ) = None
    """Widths, in falling order, to which vectors may later be truncated: the loss is the mean of
    the losses of the vectors truncated to each width."""
    matryoshka_weights: Annotated[tuple[PositiveFloat, ...], Field(strict=False)] | None = None
    """Weight of each of ``matryoshka_dims`` in the mean of their losses. ``None`` weights them
    equally."""

    @model_validator(mode="after")
    def _settings_that_agree(self) -> Self:
        if self.margin and self.false_negatives == "off":
            raise ValueError(
                f'margin = {self.margin}: false_negatives is "off"; set it to "absolute" or '
                '"relative", or leave the margin out'
            )
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
        return Needs(
            cross_device=self.cross_device,
            known_answers=self.known_answers == "source",
            negatives=True,
            surrogate_vectors=self.false_negatives != "off",
            widths=self.matryoshka_dims or (),
        )


class Contrastive(InfoNCE):
    """InfoNCE over the vectors of one encoder."""

    kind: Literal["contrastive"] = "contrastive"
    implementation: ClassVar[str] = "embedkit.objectives.contrastive:ContrastiveObjective"


class InContext(InfoNCE):
    """InfoNCE over the vectors of a two-stage model, whose second encoder reads the first encoder's
    embeddings of J documents of the batch. The defaults are from Morris and Rush (2024).
    """

    kind: Literal["contextual"]
    implementation: ClassVar[str] = "embedkit.objectives.contextual:ContextualObjective"
    temperature: PositiveFloat = 0.02
    cross_device: bool = False
    """Score each query against the documents of all ranks. The paper does not, since each rank has
    a context of its own."""

    @property
    def needs(self) -> Needs:
        return replace(super().needs, context=True)


class CoSENT(PairObjective):
    """Cosines of pairs in the order of their scores (Su, 2022): ``log(1 + sum exp((cos_j - cos_i) /
    temperature))`` over all pairs of a batch in which i has the higher score.
    """

    kind: Literal["cosent"]
    implementation: ClassVar[str] = "embedkit.objectives.scored_pairs:ScoredPairsObjective"
    temperature: PositiveFloat = 0.05
    """Divisor of the similarities, which is 1 / ``scale`` of sentence-transformers."""
    micro_batch_tokens: PositiveInt | None = None
    """Number of tokens encoded at a time with gradient caching. ``None`` turns gradient caching
    off."""

    @property
    def needs(self) -> Needs:
        return Needs(scores=True, hard_negatives=False)


class AnglE(CoSENT):
    """CoSENT with AnglE's similarity, the angle of complex vectors, in place of the cosine (Li and
    Li, 2023).
    """

    kind: Literal["angle"]  # type: ignore[assignment]


class Distill(PairObjective):
    """A teacher's scores of the positive and the hard negatives of each query, learned by the
    inner products of unit vectors.
    """

    kind: Literal["distill"]
    implementation: ClassVar[str] = "embedkit.objectives.distill:DistillObjective"
    loss: Literal["kl", "margin_mse"] = "kl"
    """``kl`` is the divergence of the teacher's distribution over a query's documents from the
    model's; ``margin_mse`` the mean squared difference of their margins from the positive to each
    negative (Hofstätter et al., 2020)."""
    temperature: PositiveFloat = 1.0
    """Divisor of the model's similarities for ``kl``, whose loss is multiplied by its square. The
    default is that of sentence-transformers; unit vectors then give flat distributions, and sharp
    ones with 0.05."""
    teacher_temperature: PositiveFloat = 1.0
    """Divisor of the teacher's scores for ``kl``."""
    micro_batch_tokens: PositiveInt | None = None
    """Number of tokens encoded at a time with gradient caching. ``None`` turns gradient caching
    off."""

    @property
    def needs(self) -> Needs:
        return Needs(teacher=True)


OBJECTIVES = Kinds(
    "embedkit.objectives",
    PairObjective,
    {
        "contrastive": Contrastive,
        "contextual": InContext,
        "cosent": CoSENT,
        "angle": AnglE,
        "distill": Distill,
    },
    default="contrastive",
)
"""Losses that ``objective.kind`` can choose."""

AnyPairObjective = Annotated[
    SerializeAsAny[PairObjective], BeforeValidator(OBJECTIVES.resolve), OBJECTIVES
]
