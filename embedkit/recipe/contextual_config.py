"""``ContextualConfig``: the two stages of a contextual model, a recipe's ``[context]``."""

from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt
from pydantic.functional_validators import model_validator

from embedkit.config import Section


class ContextualConfig(Section):
    """Settings by which the second encoder reads the first one's vectors of context documents.

    By default the only untrained parts between two pretrained encoders are a norm and a null
    vector. The released checkpoints of Morris and Rush (2024, "Contextual Document Embeddings")
    differ in every field from ``soft_prompts`` on, which loading such a checkpoint sets.
    """

    num_context: PositiveInt = 512
    """Number of slots for context documents, J. Slots without a document hold the null vector."""
    context_dropout: float = Field(default=0.005, ge=0, le=1)
    """Probability, in training, that the null vector replaces a context document; drawn anew for
    every slot and text."""
    null_vector: bool = True
    """Whether the model has a null vector. Without it every context has exactly J documents."""
    tied: bool = False
    """Whether one encoder serves both stages."""
    include_prompt: bool = True
    """Whether the prompt's tokens count in the mean over the text's tokens."""
    soft_prompts: NonNegativeInt = 0
    """Number of learned vectors between the context and the text."""
    context_projection: bool = False
    """Whether a perceptron (linear, GELU, linear) follows the first encoder's mean."""
    context_norm: bool = True
    """Whether a learned RMSNorm brings context vectors to the scale of word embeddings. NeoBERT has
    no norm in front of its first block."""
    output_projection: bool = False
    """Whether a perceptron (linear, ReLU, linear) follows the second encoder's mean."""
    output_residual: bool = True
    """Whether the input of the output projection is added to its output."""
    position_free: bool = True
    """Whether all context documents share position 0, so that their order is of no consequence."""
    first_position: NonNegativeInt | None = None
    """Position of the first soft prompt, or of the text where there is none. If unset, it is 0
    where the context is free of positions, else J."""
    entry: Literal["token", "published"] = "token"
    """A context vector enters as if it were a word's embedding (token), or as in the released code
    (published), where it meets no type embedding of a NomicBERT, and where ModernBERT norms the
    text's embeddings twice and keeps its window, out of which far context is not seen."""

    @model_validator(mode="after")
    def _dropout_needs_a_null_vector(self) -> Self:
        if self.context_dropout and not self.null_vector:
            raise ValueError(
                f"context_dropout = {self.context_dropout}: drops to the null vector; set "
                "null_vector = true, or context_dropout = 0"
            )
        return self

    @property
    def num_prefix(self) -> int:
        """Number of vectors in front of a text: context slots and soft prompts."""
        return self.num_context + self.soft_prompts

    @property
    def text_start(self) -> int:
        """Position of a text's first token."""
        first = self.first_position
        if first is None:
            first = 0 if self.position_free else self.num_context
        return first + self.soft_prompts
