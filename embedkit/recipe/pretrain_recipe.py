"""The recipe of a pretraining run on text."""

from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from embedkit.config import Section
from embedkit.recipe.training_settings import Mix, Training, weights_of


class Architecture(Section):
    """Architecture of the encoder to pretrain, with the field names of ``NeoBERTConfig`` and the
    paper's values as defaults.
    """

    tokenizer: str
    """The model whose tokenizer is used: a hub id, a folder, ``package:<distribution>/<path>``, or
    ``starter``."""
    vocab_size: PositiveInt | None = None
    """Number of rows of the embedding. If unset, there are as many as the tokenizer has ids."""
    hidden_size: PositiveInt = 768
    """Width of the token states."""
    num_hidden_layers: PositiveInt = 28
    """Number of transformer blocks."""
    num_attention_heads: PositiveInt = 12
    """Number of attention heads, which share ``hidden_size`` equally."""
    intermediate_size: PositiveInt = 3072
    """Width of a feed-forward block, before the 2/3 that keeps a SwiGLU block at the size of a GELU
    one."""
    hidden_act: Literal["swiglu", "gelu"] = "swiglu"
    """Activation of the feed-forward blocks."""
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    """Kind of the norm in front of attention and feed-forward blocks."""
    norm_eps: PositiveFloat = 1e-5
    """This number is added to the variance in every norm."""
    position: Literal["rope", "absolute"] = "rope"
    """Positions enter as rotations in attention (rope) or as learned embeddings (absolute)."""
    rope_theta: PositiveFloat = 10_000.0
    """Base of the wavelengths of RoPE."""
    yarn_factor: float | None = Field(default=None, gt=1)
    """RoPE is stretched to this many times ``max_position_embeddings`` (YaRN)."""
    max_position_embeddings: PositiveInt = 4096
    """Number of tokens of the longest sequence that the model is made for."""
    embedding_init_range: PositiveFloat = 0.02
    """Embeddings begin uniform between minus and plus this number, all other matrices in 0.02."""
    gradient_checkpointing: bool = False
    """Whether states are computed again in the backward pass, which saves memory for time."""


class Start(Section):
    """Initialization of the decoder when training starts from random weights."""

    decoder: Literal["random", "embedding"] = "random"
    """The decoder begins random, or as a copy of the embedding, so that a word is told by a state
    that stays near its embedding; the two matrices train apart from there."""
    bias: Literal["zero", "frequencies"] = "zero"
    """The decoder's bias begins at zero, or at the logarithm of each word's share of the text
    (frequencies), so that training does not begin with learning which words are frequent."""


class Text(Mix):
    """Source of text in a mixture."""

    min_tokens: NonNegativeInt = 0
    """Documents of fewer tokens, special tokens included, are left out."""


class TextData(Section):
    """The text that a run reads."""

    mix: tuple[Text, ...] = Field(min_length=1, strict=False)
    """The sources that the run reads."""
    max_tokens: int = Field(ge=8)
    """Number of tokens of the longest sequence, special tokens included."""
    packing: Literal["none", "exact", "crossing"] = "none"
    """Way to fill rows with documents. ``none``: a row is the beginning of one document (paper,
    section 3.2). ``exact``: a row holds as many documents as fit, each attending to itself only,
    and the rest of a long document goes into further rows. ``crossing``: documents are
    concatenated, and a row is the next ``max_tokens`` tokens as one sequence."""
    batch_tokens: PositiveInt
    """Number of tokens of a step over all ranks, which makes ``batch_tokens // max_tokens``
    rows."""
    draw_rows: PositiveInt
    """Number of consecutive rows of a step that come from one source. The paper draws a source for
    each micro-batch."""
    micro_batch_tokens: PositiveInt = 16_384
    """Number of tokens of one forward pass on each rank. It changes memory and speed, never the
    gradient."""
    workers: NonNegativeInt = 1
    """Number of processes that read and mask ahead. 0 does so in the training process."""

    @property
    def batch_rows(self) -> int:
        """Number of rows of a step over all ranks."""
        return self.batch_tokens // self.max_tokens

    @model_validator(mode="after")
    def _whole_draws(self) -> Self:
        weights_of(self.mix)
        if self.batch_rows == 0 or self.batch_rows % self.draw_rows:
            raise ValueError(
                f"batch_tokens / max_tokens = {self.batch_rows} rows a step, which is not a "
                f"multiple of draw_rows = {self.draw_rows}"
            )
        return self


class MaskedLM(Section):
    """Masked language modelling."""

    kind: Literal["masked_lm"]
    """This kind tells a recipe for pretraining from one for fine-tuning."""
    rate: float = Field(default=0.2, gt=0, lt=1)
    """Share of the tokens to predict; special tokens are never among them."""
    replace: Literal["mask", "80/10/10"] = "mask"
    """All tokens to guess are replaced by [MASK], or 80 % of them by [MASK], 10 % by a random token
    and 10 % by themselves."""


class HeldOutLoss(Section):
    """Interval and amount of measuring the loss on held-out text."""

    every: PositiveInt | None = None
    """Number of steps between two measurements. If unset, there is only one, at the end."""
    rows: PositiveInt = 512
    """Number of rows of each source that holds documents out; they are masked the same at every
    measurement."""


class PretrainRecipe(Training):
    """Recipe of masked language modelling with a NeoBERT, from random or earlier weights."""

    model: Architecture
    """The encoder to pretrain."""
    init_from: str | None = None
    """Training starts from the weights in this folder, of a run or of a model."""
    start: Start = Start()
    """Initialization of the decoder where the weights are random."""
    data: TextData
    """The text that the run reads."""
    objective: MaskedLM
    """The loss that training minimizes."""
    held_out: HeldOutLoss = HeldOutLoss()
    """Interval and amount of measuring the loss on held-out text."""
    shard: bool = False
    """Whether weights, gradients and moments are split over the ranks (FSDP2)."""
    compile: bool = False
    """Whether the encoder is compiled with torch.compile."""

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
