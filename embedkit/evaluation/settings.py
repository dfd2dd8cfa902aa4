"""The settings of an evaluation: ``embedkit eval-mteb`` and ``embedkit.evaluate`` share them."""

from pathlib import Path
from typing import Literal, TypedDict

from pydantic import Field, NonNegativeInt, PositiveInt

from embedkit.models.settings import Dtype, DtypeSettings
from embedkit.recipe import Instructions

ComparisonFormat = Literal["text", "csv", "latex", "markdown"]


class EvaluationSettings(DtypeSettings):
    """How a model is scored, whatever the tasks."""

    instructions: Instructions | None = None
    """paper puts the NeoBERT paper's instructions (tables 8 and 9) before the texts of the tasks
    of MTEB(eng, v1), none leaves the model its own prompts; if it is not given, the recipe says
    it, and without a recipe there are none."""
    data_dir: Path | None = Field(default=None, strict=False)
    """mteb's tasks read this mirror of hub repositories, a folder owner/name for each, and never
    the hub; if it is not given, a repository is read from $EMBEDKIT_HUB/owner/name where that
    folder exists, else from the hub."""
    truncate_dim: PositiveInt | None = None
    """Only the first dimensions of the vectors are scored, this many, at unit norm."""
    cache: bool = True
    """Vectors are kept under $EMBEDKIT_CACHE, so that no text is encoded twice."""
    cache_size: str = "20GB"
    """All kept vectors together take at most this much room; those used longest ago go first."""
    context_documents: NonNegativeInt | None = None
    """A contextual model reads this many documents of a task's corpus before the task; as many as
    it has slots if it is not given."""
    context_seed: NonNegativeInt | None = None
    """Random seed for drawing those documents; 0 if it is not given."""


class EvaluationOptions(TypedDict, total=False):
    """The types of ``EvaluationSettings`` as keyword arguments, for type checkers and editors."""

    instructions: Instructions | None
    data_dir: str | Path | None
    truncate_dim: int | None
    cache: bool
    cache_size: str
    context_documents: int | None
    context_seed: int | None
    dtype: Dtype
