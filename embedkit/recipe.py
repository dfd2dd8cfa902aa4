"""The recipe of a run: one typed, frozen, closed value, read from TOML."""

from collections.abc import Sequence
from typing import Any, Literal, Self, TypeVar

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from embedkit.errors import UserError
from embedkit.toml import Section, find, override, read_toml, validated


class Embedder(Section):
    pooling: Literal["mean", "cls"] | None = None
    """``None`` takes what the model folder says, and the mean where it says nothing."""
    include_prompt: bool | None = None
    """Whether the prompt's tokens take part in the pooling. ``None`` takes what the model folder
    says, and yes where it says nothing."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] | None = None
    """``None`` takes flash-attn on CUDA under bf16 where it is installed, else transformers' own
    choice. On CPUs ``eager`` is the faster one up to a few hundred tokens."""


class Mix(Section):
    manifest: str
    """A name under ``data_manifests/`` without ``.toml``, a path, or a key of ``sources=``."""
    weight: PositiveFloat | None = None
    """Share of the steps before normalisation. Set for every source of a mixture or for none."""


class Data(Section):
    batch_size: PositiveInt
    """Pairs a batch, over all ranks. A manifest may set its own."""
    mix: tuple[Mix, ...] = Field(min_length=1, strict=False)
    alpha: NonNegativeFloat = 0.5
    """Sources are drawn with probability ~ rows ** alpha (paper, appendix D.2)."""
    max_query_tokens: int = Field(default=512, ge=3)
    """Special tokens included, as in ``max_document_tokens``."""
    max_document_tokens: int = Field(default=512, ge=3)
    workers: NonNegativeInt = 1
    """Processes that tokenize ahead. 0 tokenizes in the training process."""

    @model_validator(mode="after")
    def _weights_for_all_or_none(self) -> Self:
        given = [mix.weight is not None for mix in self.mix]
        if any(given) and not all(given):
            missing = [mix.manifest for mix in self.mix if mix.weight is None]
            raise ValueError(
                f"weight is missing for {', '.join(missing)}: give every source one, or none"
            )
        names = [mix.manifest for mix in self.mix]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{', '.join(repeated)} stands more than once in the mixture")
        return self


class Contrastive(Section):
    kind: Literal["contrastive"] = "contrastive"
    temperature: PositiveFloat = 0.07
    symmetric: bool = False
    """Also score each positive against all queries, and take the mean of the two directions."""
    cross_device: bool = True
    """Score each query against the documents of every rank, not only its own."""
    chunk_tokens: PositiveInt | None = None
    """Tokens encoded at a time under gradient caching. ``None`` turns gradient caching off."""


class Optim(Section):
    name: Literal["adamw", "adam"] = "adamw"
    lr: PositiveFloat
    betas: tuple[float, float] = Field(default=(0.9, 0.999), strict=False)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.01
    """Not applied to norms and biases; ``adam`` adds it to the gradient instead of the weight."""
    warmup_steps: NonNegativeInt = 0
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    final_lr_share: NonNegativeFloat = 0.0
    """What is left of ``lr`` at the end of the decay under ``linear`` and ``cosine``."""
    decay_until: float = Field(default=1.0, gt=0, le=1)
    """Share of all steps after which the rate has come down, and stays."""
    clip: NonNegativeFloat = 1.0
    """Largest norm of the whole gradient. 0 turns clipping off."""
    accumulation: PositiveInt = 1
    """Batches whose mean gradient makes one step. Each keeps its own negatives."""


class Checkpoints(Section):
    every: PositiveInt = 500
    """Steps between two checkpoints. The last step always makes one."""
    keep: PositiveInt = 2
    """The newest that stay on disk."""


class Logging(Section):
    every: PositiveInt = 10
    """Steps between two writes of ``metrics.jsonl``, which has a line for every step."""
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = Field(
        default=(), strict=False
    )


class Evaluation(Section):
    held_out: bool = False
    """Evaluate on the concepts that the mixture's manifests hold out."""
    task_dirs: tuple[str, ...] = Field(default=(), strict=False)
    """Folders of task folders; may start with ``$EMBEDKIT_DATA``."""
    tasks: tuple[str, ...] = Field(default=(), strict=False)
    """Names of tasks that mteb knows."""
    max_documents: PositiveInt | None = None
    """Cut the corpus of each held-out task."""
    before: bool = True
    """Evaluate the backbone too, before the first step."""
    every: PositiveInt | None = None
    """Steps between two evaluations on the way. ``None`` evaluates at the end only."""

    @property
    def wanted(self) -> bool:
        """Whether there is anything to evaluate on."""
        return self.held_out or bool(self.task_dirs) or bool(self.tasks)


class Training(Section):
    """What every run has, whatever it trains."""

    seed: NonNegativeInt = 0
    steps: PositiveInt | None = None
    fp32_steps: PositiveInt | None = None
    """Steps in place of ``steps`` where ``precision = "auto"`` falls back to fp32."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """``auto`` takes bf16 autocast where the device has it natively, else fp32."""
    optim: Optim
    checkpoints: Checkpoints = Checkpoints()
    logging: Logging = Logging()

    @model_validator(mode="after")
    def _fewer_steps_of_some(self) -> Self:
        if self.fp32_steps is not None and (self.steps is None or self.precision != "auto"):
            raise ValueError('fp32_steps needs steps and precision = "auto"')
        return self


class Recipe(Training):
    """Contrastive fine-tuning of an encoder on pairs."""

    epochs: PositiveFloat | None = None
    """Passes over the mixture, resolved to steps. Give exactly one of ``steps`` and ``epochs``."""
    model: str
    """A hub id, a folder, ``package:<distribution>/<path>``, or ``starter``."""
    embedder: Embedder = Embedder()
    data: Data
    objective: Contrastive = Contrastive()
    evaluation: Evaluation = Evaluation()

    @model_validator(mode="before")
    @classmethod
    def _replicated(cls, tables: Any) -> Any:
        if isinstance(tables, dict) and tables.get("shard"):
            raise ValueError(
                "shard: contrastive training runs replicated, since every rank needs the whole "
                "model for its share of a batch; leave it out"
            )
        return tables

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give exactly one of steps and epochs")
        return self


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
    micro_tokens: PositiveInt = 16_384
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
        if self.optim.accumulation != 1:
            raise ValueError(
                "optim.accumulation: set data.micro_tokens instead, which changes no gradient"
            )
        limit = self.model.max_position_embeddings
        if self.model.position == "absolute" and self.data.max_tokens > limit:
            raise ValueError(
                f"data.max_tokens = {self.data.max_tokens}: the model has "
                f"max_position_embeddings = {limit}"
            )
        return self


RecipeT = TypeVar("RecipeT", bound=Training)


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a fine-tuning recipe and apply ``dotted.key=value`` overrides.

    Raises:
        UserError: there is no such recipe, it is wrong somewhere, or it is one for pretraining.
    """
    return _checked(load_any_recipe(name, overrides), Recipe, name)


def load_pretrain_recipe(name: str, overrides: Sequence[str] = ()) -> PretrainRecipe:
    """Read a pretraining recipe; otherwise as ``load_recipe``."""
    return _checked(load_any_recipe(name, overrides), PretrainRecipe, name)


def load_any_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe | PretrainRecipe:
    """Read a recipe of whatever kind its ``objective`` says."""
    path = find("recipes", name)
    tables = override(read_toml(path), overrides)
    objective = tables.get("objective")
    kind = objective.get("kind") if isinstance(objective, dict) else None
    if kind == "masked_lm":
        return validated(PretrainRecipe, tables, name)
    return validated(Recipe, tables, name)


def _checked(recipe: Training, kind: type[RecipeT], name: str) -> RecipeT:
    if isinstance(recipe, kind):
        return recipe
    command = "finetune" if isinstance(recipe, Recipe) else "pretrain"
    raise UserError(f"{name}: is a recipe for embedkit {command}")
