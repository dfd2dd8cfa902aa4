"""The recipe of a fine-tuning run on pairs."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.functional_validators import field_validator, model_validator

from embedkit.config import Section, validated
from embedkit.errors import UserError, repeated
from embedkit.recipe import extensions
from embedkit.recipe.contextual_config import ContextualConfig
from embedkit.recipe.evaluation_settings import Evaluation
from embedkit.recipe.pair_objectives import AnyPairObjective, Contrastive, InfoNCE, section_of
from embedkit.recipe.training_settings import Mix, Training, weights_of
from embedkit.recipe.validation_settings import Validation

POOLINGS = "embedkit.poolings"
"""Entry point group in which other distributions register poolings."""
STOCK_POOLINGS = ("mean", "cls", "lasttoken", "max", "mean_sqrt_len_tokens", "weightedmean")
"""Poolings of sentence-transformers, by their names there."""


class DefaultPrompts(Section):
    """Prompts of a search, by the names under which the exported model stores them.

    Sources with prompts of their own are stored as ``<source>-query`` and ``<source>-document``.
    If all sources have one prompt, it is ``query`` or ``document`` without a name here.
    """

    query: str | None = None
    """``encode_query`` of embedkit and of sentence-transformers reads behind this prompt."""
    document: str | None = None
    """``encode_document`` of embedkit and of sentence-transformers reads behind this prompt."""


class ModelSettings(Section):
    """Settings by which vectors are made from an encoder's states."""

    pooling: str | None = None
    """A text's vector is the mean of its tokens' states (``mean``), the state of the first token
    (``cls``) or the last one (``lasttoken``), or made by another pooling of sentence-transformers
    (``max``, ``mean_sqrt_len_tokens``, ``weightedmean``) or of a distribution that registers one.
    If unset, the model folder says which, and the mean is taken where it says nothing."""
    include_prompt: bool | None = None
    """Whether the prompt's tokens take part in the pooling. If unset, the model folder says it,
    and they do where it says nothing."""
    train_dense: bool = True
    """Whether Dense modules behind the pooling, which a model folder may have, are trained too. If
    not, they keep their weights. With ``[lora]`` they are trained by adapters, as far as
    ``lora.target_modules`` names them."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] | None = None
    """Implementation of attention. If unset, it is flash-attn on CUDA under bf16 where that is
    installed, else transformers' own choice. On CPUs ``eager`` is the faster one up to a few
    hundred tokens. With a ``[context]`` encoders other than NeoBERT take ``sdpa`` or ``eager``."""
    benchmark_prompts: bool = False
    """Store the paper's instruction for every task of MTEB(eng, v1) as prompts of the model, so
    that mteb applies them when it scores the model. For models trained to follow instructions."""
    default_prompts: DefaultPrompts = DefaultPrompts()
    """Names of the stored prompts that ``query`` and ``document`` stand for in the exported model,
    where the sources differ in theirs."""

    @field_validator("pooling")
    @classmethod
    def _known_pooling(cls, pooling: str | None) -> str | None:
        if pooling in (None, *STOCK_POOLINGS) or extensions.find(POOLINGS, pooling):
            return pooling
        known = ", ".join([*STOCK_POOLINGS, *extensions.names(POOLINGS)])
        raise ValueError(f"{pooling!r} is none of the poolings known, which are {known}")


class Data(Section):
    """The pairs that a run reads."""

    batch_size: PositiveInt
    """Number of pairs in a batch, over all ranks; of each rank where batches are contextual and
    ``objective.cross_device`` is false. A manifest may set its own."""
    mix: tuple[Mix, ...] = Field(min_length=1, strict=False)
    """The sources that the run reads; each batch comes from one of them."""
    batches: Literal["shuffled", "contextual"] = "shuffled"
    """A batch is made of any rows of a source (shuffled), or of rows near each other (contextual),
    which ``batch_table`` names."""
    batch_table: str | None = None
    """The folder that ``embedkit cluster`` wrote. The path may start with ``$EMBEDKIT_DATA``."""
    alpha: NonNegativeFloat = 0.5
    """Exponent of the sampling of sources, whose probability is proportional to rows ** alpha
    (paper, appendix D.2)."""
    max_query_tokens: int = Field(default=512, ge=3)
    """Queries are cut to this many tokens, prompt and special tokens included."""
    max_document_tokens: int = Field(default=512, ge=3)
    """Documents are cut to this many tokens, prompt and special tokens included."""
    workers: NonNegativeInt = 1
    """Number of processes that tokenize ahead. 0 tokenizes in the training process."""

    @model_validator(mode="after")
    def _sound_mixture(self) -> Self:
        if self.batches == "contextual" and self.batch_table is None:
            raise ValueError(
                'batches = "contextual" takes them from a batch_table: make one with embedkit '
                "cluster --output DIR and name its folder"
            )
        weights_of(self.mix)
        if twice := repeated([mix.manifest for mix in self.mix]):
            raise ValueError(f"{', '.join(twice)} stands more than once in the mixture")
        return self


class Lora(Section):
    """Low-rank adapters (peft's LoRA), which are trained while the encoder's weights are frozen."""

    rank: PositiveInt = 16
    """Width between the two matrices of an adapter."""
    alpha: PositiveFloat = 32.0
    """The output of an adapter is scaled by ``alpha / rank``."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Probability that a feature of an adapter's input is dropped in training."""
    target_modules: (
        Literal["all-linear"] | Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
    ) = "all-linear"
    """The linear layers that get an adapter, by the last parts of their names. A NeoBERT has
    ``qkv``, ``wo``, ``w12`` and ``w3``."""

    @field_validator("target_modules", mode="before")
    @classmethod
    def _no_single_name(cls, value: Any) -> Any:
        if isinstance(value, str) and value != "all-linear":
            raise ValueError(f'{value} is not "all-linear": write a list, ["{value}"]')
        return value


class Shortcuts(Section):
    """Keys of a recipe that most runs change, under short names."""

    lr: PositiveFloat | None = None
    """Highest learning rate, in place of the recipe's ``optim.lr``."""
    epochs: PositiveFloat | None = None
    """Length of the run in passes over the mixture, in place of the recipe's ``steps`` or
    ``epochs``."""
    batch_size: PositiveInt | None = None
    """Number of pairs in a batch over all ranks, in place of the recipe's ``data.batch_size``."""

    def overrides(self) -> list[str]:
        """Return the assignments to a recipe's keys that say the same."""
        keys = {"optim.lr": self.lr, "epochs": self.epochs, "data.batch_size": self.batch_size}
        unset = ["steps="] if self.epochs is not None else []
        return [f"{key}={value}" for key, value in keys.items() if value is not None] + unset


class Recipe(Training):
    """Recipe of the contrastive fine-tuning of an encoder on pairs."""

    epochs: PositiveFloat | None = None
    """Length of the run in passes over the mixture. Exactly one of ``steps`` and ``epochs`` is
    set."""
    model: str = Field(min_length=1)
    """The encoder to train: a hub id, a folder, ``package:<distribution>/<path>``, or
    ``starter``."""
    embedder: ModelSettings = ModelSettings()
    """Settings by which vectors are made from the encoder's states."""
    data: Data
    """The pairs that the run reads."""
    lora: Lora | None = None
    """Low-rank adapters, which train in place of the weights. If unset, every weight trains."""
    objective: AnyPairObjective = Contrastive()
    """The loss that training minimizes."""
    context: ContextualConfig | None = None
    """Settings of the two stages, for ``objective.kind = "contextual"`` alone."""
    validation: Validation | None = None
    """Held-out pairs, by which the best step is found and exported. If unset, the last step is
    exported."""
    evaluation: Evaluation = Evaluation()
    """Tasks that the run is evaluated on, and the steps at which it is."""

    @property
    def batches_per_rank(self) -> bool:
        """Whether each rank reads a whole batch every step, instead of a share of one batch.

        With contextual batches and no shared negatives, sharing one batch of similar rows would
        leave each query fewer hard in-batch negatives.
        """
        return self.data.batches == "contextual" and not self.objective.needs.cross_device

    def with_objective(self, objective: object) -> Self:
        """Return a copy of the recipe with an objective that ``section_of`` takes.

        Raises:
            UserError: the recipe has an ``[objective]`` already, or the objective does not fit it.
        """
        # A table with nothing but defaults is a choice, too, which would be ignored.
        if "objective" in self.model_fields_set:
            raise UserError(
                f"objective: the recipe sets one already, of kind {self.objective.kind!r}: take "
                "its [objective] out, or pass none"
            )
        tables = {**dict(self), "objective": section_of(objective)}
        return validated(type(self), tables, "finetune")

    @model_validator(mode="after")
    def _two_stages_throughout(self) -> Self:
        kind, embedder, context = self.objective.kind, self.embedder, self.context
        two_stages = self.objective.needs.context
        if context is None and not two_stages:
            return self
        if context is None:
            raise ValueError(
                f'objective.kind = "{kind}" needs a [context] table: num_context = 512 is the '
                "paper's"
            )
        if not two_stages:
            raise ValueError(
                'context: goes with objective.kind = "contextual"; set that, or take the table '
                "out with --set context="
            )
        if self.lora is not None:
            raise ValueError(
                f'lora: objective.kind = "{kind}" trains all weights of two encoders; leave the '
                "table out"
            )
        if embedder.pooling not in (None, "mean"):
            raise ValueError(
                f'embedder.pooling = "{embedder.pooling}": a two-stage model takes the mean; '
                "leave it out"
            )
        if embedder.benchmark_prompts:
            raise ValueError(
                "embedder.benchmark_prompts: a two-stage model is told uses of text, not tasks; "
                "leave it out"
            )
        if embedder.include_prompt not in (None, context.include_prompt):
            pooled, other = ("true", "false") if embedder.include_prompt else ("false", "true")
            raise ValueError(
                f"embedder.include_prompt = {pooled}, but context.include_prompt = {other}: set "
                "both alike, or leave the first out"
            )
        return self

    @model_validator(mode="after")
    def _measurable(self) -> Self:
        validation = self.validation
        if validation is None:
            return self
        if validation.share is not None and self.data.batch_table is not None:
            raise ValueError(
                "validation.share takes rows out of the sources, and data.batch_table is made of "
                "all of them: name other pairs in validation.records"
            )
        if validation.metric == "ndcg_at_10" and self.objective.needs.scores:
            raise ValueError(
                f'objective.kind = "{self.objective.kind}" goes by scores of pairs, which are no '
                'queries with answers to be found: set validation.metric = "loss"'
            )
        return self

    @model_validator(mode="after")
    def _one_length_and_a_table_to_filter_by(self) -> Self:
        objective = self.objective
        if objective.needs.surrogate_vectors and self.data.batch_table is None:
            setting = f'kind = "{objective.kind}"'
            if isinstance(objective, InfoNCE):
                setting = f'false_negatives = "{objective.false_negatives}"'
            raise ValueError(
                f"objective.{setting} goes by the vectors of a data.batch_table: make one with "
                "embedkit cluster --output DIR and name its folder"
            )
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give exactly one of steps and epochs")
        return self
