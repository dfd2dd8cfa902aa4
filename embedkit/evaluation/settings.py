"""Settings of evaluations, which commands and Python calls share: of mteb and of perplexity."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Required, TypedDict

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeInt, PositiveInt

from embedkit.config import Section, from_arguments
from embedkit.recipe import Dtype, DtypeSettings, ScoringSettings

ComparisonFormat = Literal["text", "csv", "latex", "markdown"]
FailuresFormat = Literal["text", "csv", "json"]


class EvaluationSettings(ScoringSettings):
    """Settings of scoring a model, which hold for all tasks."""

    max_tokens: int | None = Field(default=None, ge=3)
    """Texts are cut to this many tokens, prompt and special tokens included, instead of to as many
    as the model folder says; at most to as many as the model has positions."""
    truncate_dim: PositiveInt | None = None
    """Only this many of the first dimensions of the vectors are scored; they are not scaled to unit
    norm again."""
    context_documents: NonNegativeInt | None = None
    """A contextual model reads this many documents of a task's corpus before the task; by default
    as many as it has slots."""
    context_seed: NonNegativeInt | None = None
    """Random seed for drawing the documents that a contextual model reads; 0 by default."""


class EvaluationOptions(TypedDict, total=False):
    """The types of ``EvaluationSettings`` as keyword arguments, for type checkers and editors."""

    benchmark: str | None
    instructions: str | Path
    data_dir: str | Path | None
    cache: bool
    cache_size: str
    max_tokens: int | None
    truncate_dim: int | None
    context_documents: int | None
    context_seed: int | None
    dtype: Dtype


def settings_of(
    evaluation: ScoringSettings | None, options: Mapping[str, Any] | None = None
) -> EvaluationSettings:
    """Return the settings of an evaluation: ``options``, and for the others those of a recipe.

    Raises:
        ArgumentError: an option is wrong.
    """
    shared = ScoringSettings.model_fields if evaluation else ()
    stated = {name: getattr(evaluation, name) for name in shared}
    return from_arguments(EvaluationSettings, stated | dict(options or {}))


def _numbers(value: Any) -> Any:
    """Read ``512,1024`` as the command line has it; any other value stays as it is."""
    if not isinstance(value, str):
        return value
    try:
        return tuple(int(number) for number in value.split(","))
    except ValueError:
        raise ValueError(f"write numbers, e.g. 512,1024 (got {value})") from None


def _long_enough(lengths: tuple[int, ...]) -> tuple[int, ...]:
    if not lengths or min(lengths) < 3:
        shown = ",".join(map(str, lengths)) or "none"
        raise ValueError(f"give numbers of tokens from 3 on, e.g. 512,1024 (got {shown})")
    return tuple(dict.fromkeys(lengths))


def _positions(value: Any) -> Any:
    number = int(value) if isinstance(value, str) and value.isdigit() else value
    if number != "all" and (not isinstance(number, int) or number < 2):
        raise ValueError(f"write all, or a number from 2 on (got {value})")
    return number


class PerplexitySettings(DtypeSettings):
    """Settings of pseudo-perplexity: the documents, their lengths, and the tokens to mask."""

    lengths: Annotated[tuple[int, ...], BeforeValidator(_numbers), AfterValidator(_long_enough)] = (
        Field(strict=False, examples=["512,1024"])
    )
    """Documents are cut to each of these numbers of tokens, special tokens included."""
    documents: PositiveInt = 100
    """At most this many documents are measured at each length."""
    positions: Annotated[Literal["all"] | int, BeforeValidator(_positions)] = Field(
        default="all", examples=["64", "all"]
    )
    """This many tokens of each document are masked, one at a time; all masks every token."""
    seed: int = 0
    """Random seed for drawing the positions that are masked."""


class PerplexityOptions(TypedDict, total=False):
    """The types of ``PerplexitySettings`` as keyword arguments, for type checkers and editors."""

    lengths: Required[Sequence[int] | str]
    documents: int
    positions: int | Literal["all"]
    seed: int
    dtype: Dtype


class ComparisonSettings(Section):
    """Settings of comparing evaluations."""

    group: tuple[str, ...] = Field(default=(), strict=False, examples=["'runs/a_s*'"])
    """The folders that match this pattern, several seeds of one recipe, make one row; quote it,
    since a shell replaces patterns. Groups come after single runs. May be repeated."""
    tasks: bool = False
    """The differences of each task are shown too, with the wins, ties and losses, and with
    intervals over the queries of retrieval and reranking tasks; CSV then has the tasks alone."""
    paper: bool = False
    """The published rows of the paper's Table 4 are added."""


class ComparisonOptions(TypedDict, total=False):
    """The types of ``ComparisonSettings`` as keyword arguments, for type checkers and editors."""

    group: Sequence[str]
    tasks: bool
    paper: bool


class FailuresSettings(Section):
    """Settings of listing the queries that two evaluations answer differently."""

    task: tuple[str, ...] = Field(default=(), strict=False, examples=["NAME"])
    """Only this task's queries are listed; by default those of all retrieval and reranking tasks
    that both runs have. May be repeated."""
    limit: PositiveInt = 5
    """At most this many queries won and as many lost are listed for each task, those whose scores
    differ most first."""
    data_dir: Path | None = Field(default=None, strict=False)
    """Texts of mteb's tasks are read from this mirror of hub repositories; by default from where
    the first run read them."""


class FailuresOptions(TypedDict, total=False):
    """The types of ``FailuresSettings`` as keyword arguments, for type checkers and editors."""

    task: Sequence[str]
    limit: int
    data_dir: str | Path | None
