"""The recipe of a pretraining run on text."""

from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from embedkit.config import Section
from embedkit.recipe.training_settings import Training


class Architecture(Section):
    """Architecture of the encoder to pretrain, with the field names of ``NeoBERTConfig`` and the
    paper's values as defaults.
    """

    tokenizer: str
    """Tokenizer: a hub id, a folder, ``package:<distribution>/<path>``, or ``starter``."""
    vocab_size: PositiveInt | None = None
    """Number of rows of the embedding. ``None`` takes the number of the tokenizer's ids."""
    hidden_size: PositiveInt = 768
    num_hidden_layers: PositiveInt = 28
    num_attention_heads: PositiveInt = 12
    intermediate_size: PositiveInt = 3072
    """Width of a GELU feed-forward block. A SwiGLU block has 2/3 of it, which keeps its number of
    weights the same."""
    hidden_act: Literal["swiglu", "gelu"] = "swiglu"
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norm_eps: PositiveFloat = 1e-5
    position: Literal["rope", "absolute"] = "rope"
    rope_theta: PositiveFloat = 10_000.0
    yarn_factor: float | None = Field(default=None, gt=1)
    """Factor by which YaRN extends RoPE beyond ``max_position_embeddings``."""
    max_position_embeddings: PositiveInt = 4096
    embedding_init_range: PositiveFloat = 0.02
    """Bound of the uniform initialization of embeddings, in plus and minus; other matrices have a
    bound of 0.02."""
    gradient_checkpointing: bool = False


class Start(Section):
    """Initialization of the decoder when training starts from random weights."""

    decoder: Literal["random", "embedding"] = "random"
    """Initial weights of the decoder. ``embedding``: a copy of the embedding matrix, so that a
    hidden state near a token's embedding predicts that token; the two are trained separately."""
    bias: Literal["zero", "frequencies"] = "zero"
    """Initial bias of the decoder. ``frequencies``: the logarithm of each token's frequency in the
    text, so that training does not have to learn which tokens are frequent."""


class Text(Section):
    """Source of text in a mixture."""

    manifest: str
    """Manifest of the source: a name under ``data_manifests/`` without ``.toml``, a path, or a key
    of ``sources=``."""
    weight: PositiveFloat | None = None
    """Source's share of the draws before normalisation. Set for every source of a mixture or none;
    without weights sources are drawn in proportion to their rows."""
    min_tokens: NonNegativeInt = 0
    """Least length of the documents to use, in tokens, special tokens included. Shorter ones are
    skipped without a copy of the source."""


class TextData(Section):
    mix: tuple[Text, ...] = Field(min_length=1, strict=False)
    max_tokens: int = Field(ge=8)
    """Largest number of tokens of a row, special tokens included."""
    packing: Literal["none", "exact", "crossing"] = "none"
    """How documents fill rows. ``none``: a row is the beginning of one document (paper, section
    3.2). ``exact``: a row holds as many documents as fit, each attending to itself only, and the
    rest of a long document goes into further rows. ``crossing``: documents are concatenated, and a
    row is the next ``max_tokens`` tokens as one sequence."""
    batch_tokens: PositiveInt
    """Number of tokens of a step over all ranks: ``batch_tokens // max_tokens`` rows."""
    draw_rows: PositiveInt
    """Number of rows drawn from a source at a time; a step has several draws. The paper draws a
    source for each micro-batch."""
    micro_batch_tokens: PositiveInt = 16_384
    """Tokens of one forward pass on each rank. Changes memory and speed, never the gradient."""
    workers: NonNegativeInt = 1
    """Number of processes that read and mask ahead. 0 reads and masks in the training process."""

    @property
    def batch_rows(self) -> int:
        """Number of rows of a step over all ranks."""
        return self.batch_tokens // self.max_tokens

    @model_validator(mode="after")
    def _whole_draws(self) -> Self:
        given = [source.weight is not None for source in self.mix]
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
    """Share of the tokens to predict; special tokens are never among them."""
    replace: Literal["mask", "80/10/10"] = "mask"
    """Replacement of the tokens to predict: [MASK] for all, or [MASK] for 80 %, a random token for
    10 % and no change for 10 %."""


class HeldOutLoss(Section):
    every: PositiveInt | None = None
    """Steps between two measurements. ``None`` measures at the end only."""
    rows: PositiveInt = 512
    """Number of rows to measure of each source that holds documents out; they are masked the same
    way at every measurement."""


class PretrainRecipe(Training):
    """Recipe of masked language modelling with a NeoBERT, from random or earlier weights."""

    model: Architecture
    init_from: str | None = None
    """Folder of a run or a model whose weights training starts from. ``None``: random weights."""
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
