"""``ContextualConfig``: architecture of a two-stage model, for embedkit's and published ones."""

from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from embedkit.config import Section


class ContextualConfig(Section):
    """How the second encoder reads the first encoder's embeddings of the context documents.

    By default the only untrained parts between two pretrained encoders are a norm and a null
    vector. The released checkpoints of Morris and Rush (2024, "Contextual Document Embeddings")
    differ in every field from ``soft_prompts`` on, which loading such a checkpoint sets.
    """

    num_context: PositiveInt = 512
    """Number of slots for context documents, J. With fewer documents, the null vector fills the
    remaining slots."""
    context_dropout: float = Field(default=0.005, ge=0, le=1)
    """Probability, in training, that the null vector replaces a context document; drawn anew for
    every slot and text."""
    null_vector: bool = True
    """Whether the model has a null vector. Without it every context has exactly J documents."""
    tied: bool = False
    """Whether both stages share one encoder."""
    include_prompt: bool = True
    """Whether the prompt's tokens count in the mean over the text's tokens."""
    soft_prompts: NonNegativeInt = 0
    """Number of learned vectors between the context and the text."""
    context_projection: bool = False
    """Whether Linear, GELU, Linear follow the mean of the first encoder."""
    context_norm: bool = True
    """Whether a learned RMSNorm scales context vectors to the size of word embeddings. NeoBERT has
    no norm before its first block."""
    output_projection: bool = False
    """Whether Linear, ReLU, Linear follow the mean of the second encoder."""
    output_residual: bool = True
    """Whether the input of the output projection is added to its output."""
    position_free: bool = True
    """Whether all context documents have position 0, so that their order has no effect."""
    first_position: NonNegativeInt | None = None
    """Position of the first soft prompt, or of the text without soft prompts. ``None`` is 0 with
    ``position_free``, else J."""
    entry: Literal["token", "published"] = "token"
    """Where context vectors enter the second encoder. ``token``: as word embeddings. ``published``:
    as in the released code, where NomicBERT adds no type embedding to them, and where ModernBERT
    norms the text's embeddings twice and its local attention does not reach distant context."""

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
