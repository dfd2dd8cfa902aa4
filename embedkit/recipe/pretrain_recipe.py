"""The recipe of a pretraining run on text."""

from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from embedkit.config import Section
from embedkit.recipe.training_settings import Training


class Architecture(Section):
    """The encoder to pretrain, by the names of ``NeoBERTConfig``; the defaults are the paper's."""

    tokenizer: str
    """A hub id, a folder, ``package:<distribution>/<path>``, or ``starter``."""
    vocab_size: PositiveInt | None = None
    """Rows of the embedding. ``None`` takes as many as the tokenizer has ids."""
    hidden_size: PositiveInt = 768
    num_hidden_layers: PositiveInt = 28
    num_attention_heads: PositiveInt = 12
    intermediate_size: PositiveInt = 3072
    """Before the 2/3 that keeps a SwiGLU block at the size of a GELU one."""
    hidden_act: Literal["swiglu", "gelu"] = "swiglu"
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norm_eps: PositiveFloat = 1e-5
    position: Literal["rope", "absolute"] = "rope"
    rope_theta: PositiveFloat = 10_000.0
    yarn_factor: float | None = Field(default=None, gt=1)
    """Stretch RoPE to that many times ``max_position_embeddings`` (YaRN)."""
    max_position_embeddings: PositiveInt = 4096
    embedding_init_range: PositiveFloat = 0.02
    """Embeddings begin uniform in plus and minus that, as all other matrices in 0.02."""
    gradient_checkpointing: bool = False


class Start(Section):
    """How the decoder begins, where the weights are random."""

    decoder: Literal["random", "embedding"] = "random"
    """``embedding``: as its copy, so that a word's state need only stay near its embedding for the
    word to be told; the two go separate ways from there."""
    bias: Literal["zero", "frequencies"] = "zero"
    """``frequencies``: the logarithm of each word's share of the text, so that training does not
    begin with learning which words are frequent."""


class Text(Section):
    """A source of text in a mixture."""

    manifest: str
    """A name under ``data_manifests/`` without ``.toml``, a path, or a key of ``sources=``."""
    weight: PositiveFloat | None = None
    """Share of the draws before normalisation. Set for every source of a mixture or for none;
    without weights a source comes up by its rows."""
    min_tokens: NonNegativeInt = 0
    """Only the documents of at least so many tokens, special tokens included: a view, no copy."""


class TextData(Section):
    mix: tuple[Text, ...] = Field(min_length=1, strict=False)
    max_tokens: int = Field(ge=8)
    """Of a sequence, special tokens included."""
    packing: Literal["none", "exact", "crossing"] = "none"
    """``none``: a row is the beginning of one document (paper, section 3.2). ``exact``: a row is
    as many documents as fit, side by side, each attending to itself; what is cut off a long one
    makes further rows. ``crossing``: the next tokens of all documents in a chain, as one
    sequence (M6)."""
    batch_tokens: PositiveInt
    """Tokens of a step over all ranks: ``batch_tokens // max_tokens`` rows."""
    draw_rows: PositiveInt
    """Rows of a step that come from one source: the paper draws one for each micro-batch."""
    micro_batch_tokens: PositiveInt = 16_384
    """Tokens of one forward on each rank. Changes memory and speed, never the gradient."""
    workers: NonNegativeInt = 1
    """Processes that read and mask ahead. 0 does so in the training process."""

    @property
    def batch_rows(self) -> int:
        """Rows of a step over all ranks."""
        return self.batch_tokens // self.max_tokens

    @model_validator(mode="after")
    def _whole_draws(self) -> Self:
        given = [each.weight is not None for each in self.mix]
        if any(given) and not all(given):
            raise ValueError("weight: give every source of mix one, or none")
        if self.batch_rows == 0 or self.batch_rows % self.draw_rows:
            raise ValueError(
                f"batch_tokens / max_tokens = {self.batch_rows} rows a step, which is not a "
                f"multiple of draw_rows = {self.draw_rows}"
            )
        return self


class MaskedLM(Section):
    kind: Literal["masked_lm"]
    rate: float = Field(default=0.2, gt=0, lt=1)
    """Share of the tokens that are to be guessed; special tokens never are."""
    replace: Literal["mask", "80/10/10"] = "mask"
    """All by [MASK], or 80 % by [MASK], 10 % by a random token and 10 % by themselves."""


class HeldOutLoss(Section):
    every: PositiveInt | None = None
    """Steps between two measurements. ``None`` measures at the end only."""
    rows: PositiveInt = 512
    """Of each source that holds documents out; masked the same at every measurement."""


class PretrainRecipe(Training):
    """Masked language modelling of a NeoBERT from random weights, or from an earlier run's."""

    model: Architecture
    init_from: str | None = None
    """A run's folder or a model's, whose weights training starts from."""
    start: Start = Start()
    data: TextData
    objective: MaskedLM
    held_out: HeldOutLoss = HeldOutLoss()
    shard: bool = False
    """Split weights, gradients and moments over the ranks (FSDP2)."""
    compile: bool = False
    """Compile the encoder with torch.compile."""

    @model_validator(mode="after")
    def _steps_and_positions(self) -> Self:
        if self.steps is None:
            raise ValueError("steps is missing")
        if self.init_from is not None and self.start != Start():
            raise ValueError("start: concerns random weights, and init_from names others")
        if self.optim.gradient_accumulation_steps != 1:
            raise ValueError(
                "optim.gradient_accumulation_steps: set data.micro_batch_tokens instead, which "
                "changes no gradient"
            )
        limit = self.model.max_position_embeddings
        if self.model.position == "absolute" and self.data.max_tokens > limit:
            raise ValueError(
                f"data.max_tokens = {self.data.max_tokens}: the model has "
                f"max_position_embeddings = {limit}"
            )
        return self
