"""The recipe of a fine-tuning run on pairs."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from embedkit.config import Section, validated
from embedkit.errors import UserError
from embedkit.recipe import extensions
from embedkit.recipe.contextual_config import ContextualConfig
from embedkit.recipe.pair_objectives import (
    AnyPairObjective,
    Contrastive,
    GivenObjective,
    InfoNCE,
    PairObjective,
)
from embedkit.recipe.training_settings import Training

POOLINGS = "embedkit.poolings"
"""Entry point group in which other distributions register poolings."""


class ModelSettings(Section):
    pooling: str | None = None
    """Pooling of token states: ``mean``, ``cls``, or one that another distribution registers.
    ``None`` takes the setting of the model folder, else ``mean``."""
    include_prompt: bool | None = None
    """Whether the prompt's tokens count in the pooling. ``None`` takes the setting of the model
    folder, else true."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] | None = None
    """Attention implementation. ``None`` takes flash-attn on CUDA under bf16 if it is installed,
    else the default of transformers. On CPUs ``eager`` is faster up to a few hundred tokens. With a
    ``[context]``, encoders other than NeoBERT take ``sdpa`` or ``eager``."""
    benchmark_prompts: bool = False
    """Store the paper's instruction for every task of MTEB(eng, v1) as prompts of the model, so
    that mteb applies them when it scores the model. For models trained to follow instructions."""

    @field_validator("pooling")
    @classmethod
    def _known_pooling(cls, pooling: str | None) -> str | None:
        if pooling is None or pooling in ("mean", "cls") or extensions.find(POOLINGS, pooling):
            return pooling
        known = ", ".join(["mean", "cls", *extensions.names(POOLINGS)])
        raise ValueError(f"{pooling!r} is none of the poolings known, which are {known}")


class Mix(Section):
    manifest: str
    """Manifest of the source: a name under ``data_manifests/`` without ``.toml``, a path, or a key
    of ``sources=``."""
    weight: PositiveFloat | None = None
    """Source's share of the steps before normalisation. Set for every source of a mixture, or for
    none."""


class Data(Section):
    batch_size: PositiveInt
    """Number of pairs in a batch over all ranks, or of each rank if batches are contextual and
    ``objective.cross_device`` is false. A manifest may override it for its source."""
    mix: tuple[Mix, ...] = Field(min_length=1, strict=False)
    batches: Literal["shuffled", "contextual"] = "shuffled"
    """Rows that make a batch: ``shuffled`` takes any rows of a source, ``contextual`` takes similar
    rows, as listed in ``batch_table``."""
    batch_table: str | None = None
    """Folder that ``embedkit cluster`` wrote; may start with ``$EMBEDKIT_DATA``."""
    alpha: NonNegativeFloat = 0.5
    """Exponent of the sampling of sources, whose probability is proportional to rows ** alpha
    (paper, appendix D.2)."""
    max_query_tokens: int = Field(default=512, ge=3)
    """Length to which queries are truncated, in tokens, special tokens included."""
    max_document_tokens: int = Field(default=512, ge=3)
    """Length to which documents are truncated, in tokens, special tokens included."""
    workers: NonNegativeInt = 1
    """Number of processes that tokenize ahead. 0 tokenizes in the training process."""

    @model_validator(mode="after")
    def _batches_from_a_table(self) -> Self:
        if self.batches == "contextual" and self.batch_table is None:
            raise ValueError(
                'batches = "contextual" takes them from a batch_table: make one with embedkit '
                "cluster --output DIR and name its folder"
            )
        return self

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


class Lora(Section):
    """Low-rank adapters (peft's LoRA), which are trained while the encoder's weights are frozen."""

    rank: PositiveInt = 16
    alpha: PositiveFloat = 32.0
    """Scale of adapters: their output is multiplied by ``alpha / rank``."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout probability of an adapter's input."""
    target_modules: (
        Literal["all-linear"] | Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
    ) = "all-linear"
    """Linear layers that get an adapter, by the last parts of their names. A NeoBERT has ``qkv``,
    ``wo``, ``w12`` and ``w3``."""

    @field_validator("target_modules", mode="before")
    @classmethod
    def _no_single_name(cls, value: Any) -> Any:
        if isinstance(value, str) and value != "all-linear":
            raise ValueError(f'{value} is not "all-linear": write a list, ["{value}"]')
        return value


Instructions = Literal["none", "paper"]


class Evaluation(Section):
    held_out: bool = False
    """Evaluate on the concepts that the mixture's manifests hold out."""
    task_dirs: tuple[str, ...] = Field(default=(), strict=False)
    """Folders that contain task folders; may start with ``$EMBEDKIT_DATA``."""
    tasks: tuple[str, ...] = Field(default=(), strict=False)
    """Names of mteb tasks to evaluate on."""
    instructions: Instructions = "none"
    """Instructions before the texts of tasks. ``"paper"`` takes the paper's for each task of
    MTEB(eng, v1), for a model trained with such instructions. Prompts that the model stores for a
    task, and those of a task folder, apply either way."""
    max_documents: PositiveInt | None = None
    """Largest number of documents in the corpus of a held-out task. ``None`` keeps all."""
    before: bool = True
    """Evaluate the backbone too, before the first step."""
    every: PositiveInt | None = None
    """Steps between two evaluations during training. ``None`` evaluates at the end only."""

    @property
    def wanted(self) -> bool:
        """Whether the recipe names anything to evaluate on."""
        return self.held_out or bool(self.task_dirs) or bool(self.tasks)


class Recipe(Training):
    """Recipe of the contrastive fine-tuning of an encoder on pairs."""

    epochs: PositiveFloat | None = None
    """Number of passes over the mixture, resolved to steps. Give exactly one of ``steps`` and
    ``epochs``."""
    model: str
    """Model to fine-tune: a hub id, a folder, ``package:<distribution>/<path>``, or ``starter``."""
    embedder: ModelSettings = ModelSettings()
    data: Data
    lora: Lora | None = None
    """Low-rank adapters to train instead of the weights. ``None`` trains every weight."""
    objective: AnyPairObjective = Contrastive()
    context: ContextualConfig | None = None
    """Architecture of the two-stage model of ``objective.kind = "contextual"``."""
    evaluation: Evaluation = Evaluation()

    @property
    def batches_per_rank(self) -> bool:
        """Whether each rank reads a whole batch every step, instead of a share of one batch.

        With contextual batches and no shared negatives, sharing one batch of similar rows would
        leave each query fewer hard in-batch negatives.
        """
        return self.data.batches == "contextual" and not self.objective.needs.cross_device

    def with_objective(self, objective: object) -> Self:
        """Return a copy of the recipe with an objective given as a Python object.

        Args:
            objective: a ``PairObjective``, or an object with a method ``backward`` and a string
                ``identity``.

        Raises:
            UserError: the recipe has an ``[objective]`` already, or the objective does not fit
                the rest of the recipe.
        """
        if self.objective != Contrastive():
            raise UserError(
                f"objective: the recipe sets one already, of kind {self.objective.kind!r}: take "
                "its [objective] out, or pass none"
            )
        section = (
            objective if isinstance(objective, PairObjective) else GivenObjective.around(objective)
        )
        return validated(type(self), {**dict(self), "objective": section}, "finetune")

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
    def _a_context_for_two_encoders(self) -> Self:
        kind, wanted = self.objective.kind, self.objective.needs.context
        if wanted and self.context is None:
            raise ValueError(
                f'objective.kind = "{kind}" needs a [context] table: num_context = 512 is the '
                "paper's"
            )
        if not wanted and self.context is not None:
            raise ValueError(
                'context: goes with objective.kind = "contextual"; set that, or take the table '
                "out with --set context="
            )
        if wanted and self.lora is not None:
            raise ValueError(
                f'lora: objective.kind = "{kind}" trains all weights of two encoders; leave the '
                "table out"
            )
        return self

    @model_validator(mode="after")
    def _an_embedder_of_two_encoders(self) -> Self:
        if self.context is None:
            return self
        if self.embedder.pooling not in (None, "mean"):
            raise ValueError(
                f'embedder.pooling = "{self.embedder.pooling}": a two-stage model takes the mean; '
                "leave it out"
            )
        if self.embedder.benchmark_prompts:
            raise ValueError(
                "embedder.benchmark_prompts: a two-stage model is told uses of text, not tasks; "
                "leave it out"
            )
        prompt, own = self.context.include_prompt, self.embedder.include_prompt
        if own is not None and own != prompt:
            raise ValueError(
                f"embedder.include_prompt = {str(own).lower()}, but context.include_prompt = "
                f"{str(prompt).lower()}: set both alike, or leave the first out"
            )
        return self

    @model_validator(mode="after")
    def _a_table_to_filter_by(self) -> Self:
        objective = self.objective
        if objective.needs.surrogate_vectors and self.data.batch_table is None:
            setting = f'kind = "{objective.kind}"'
            if isinstance(objective, InfoNCE):
                setting = f'false_negatives = "{objective.false_negatives}"'
            raise ValueError(
                f"objective.{setting} goes by the vectors of a "
                "data.batch_table: make one with embedkit cluster --output DIR and name its folder"
            )
        return self

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give exactly one of steps and epochs")
        return self
