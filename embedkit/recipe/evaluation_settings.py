"""Settings of evaluation: those that a recipe shares with the command, and a recipe's own."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ByteSize,
    Field,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)

from embedkit.config import expand
from embedkit.recipe.dtype_settings import Dtype, DtypeSettings


def _number_of_bytes(size: str) -> str:
    # Without a unit pydantic reads bytes, of which 20 are room for nothing.
    if size.strip()[-1:].isalpha():
        with suppress(ValidationError):
            TypeAdapter(ByteSize).validate_python(size)
            return size
    raise ValueError(f"write a number and a unit, such as 20GB (got {size!r})")


def _known(instructions: str) -> str:
    if instructions in ("none", "paper") or Path(instructions).suffix in (".toml", ".json"):
        return instructions
    raise ValueError(
        f"write none, paper, or the path of a TOML or JSON file (got {instructions!r})"
    )


class ScoringSettings(DtypeSettings):
    """Settings that ``eval-mteb``, ``evaluate`` and a recipe's ``[evaluation]`` have in common."""

    benchmark: str | None = None
    """The model is scored on this benchmark of mteb, such as ``MTEB(eng, v1)``."""
    instructions: Annotated[
        str,
        BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value),
        AfterValidator(_known),
    ] = Field(default="none", examples=["none", "paper", "FILE"])
    """paper puts the NeoBERT paper's instructions (tables 8 and 9) before the texts of the tasks
    of MTEB(eng, v1), for a model trained with such instructions. A TOML or JSON file puts its
    prefixes, each under a task's exact name or under NAME-query and NAME-document. none leaves task
    folders and the model their own prompts."""
    data_dir: Path | None = Field(default=None, strict=False)
    """mteb's tasks read this mirror of hub repositories, a folder owner/name for each, and never
    the hub; by default a repository is read from $EMBEDKIT_HUB/owner/name if that folder exists,
    else from the hub."""
    dtype: Dtype = "fp32"
    """The model computes in this type: fp32 gives the scores of sentence-transformers and mteb on
    any machine, fp16 and bf16 are faster, auto is bf16 where the device multiplies it natively,
    else fp32."""
    cache: bool = True
    """Vectors are kept under $EMBEDKIT_CACHE, so that a second evaluation does not encode the same
    texts again."""
    cache_size: Annotated[str, AfterValidator(_number_of_bytes)] = "20GB"
    """All kept vectors take at most this much room; those used longest ago are deleted first."""

    @property
    def mirror(self) -> Path | None:
        """``data_dir``, which may start with ``~`` or ``$EMBEDKIT_DATA``, as a path."""
        return Path(expand(str(self.data_dir))) if self.data_dir else None

    @property
    def cache_bytes(self) -> int | None:
        """Room for kept vectors in bytes; ``None`` if none are kept."""
        return int(TypeAdapter(ByteSize).validate_python(self.cache_size)) if self.cache else None


class Evaluation(ScoringSettings):
    """Tasks that a run is evaluated on, the steps at which it is, and how it is scored."""

    held_out: bool = False
    """The run is evaluated on the concepts that the mixture's manifests hold out."""
    task_dirs: tuple[str, ...] = Field(default=(), strict=False)
    """The run is evaluated on the tasks in these folders, whose paths may start with
    ``$EMBEDKIT_DATA``."""
    tasks: tuple[str, ...] = Field(default=(), strict=False)
    """The run is evaluated on these tasks of mteb, by their names."""
    max_documents: PositiveInt | None = None
    """The corpus of each held-out task has at most this many documents."""
    before: bool = True
    """Whether the backbone is evaluated too, before the first step."""
    every: PositiveInt | None = None
    """Number of steps between two evaluations on the way. If unset, there is only one, at the
    end."""

    verdict: bool = False
    """Whether the run ends with a sentence on each retrieval task: how many queries the trained
    model answers better and worse than the backbone, and whether the difference may be chance."""

    @property
    def wanted(self) -> bool:
        """Whether the recipe names anything to evaluate on."""
        return bool(self.held_out or self.task_dirs or self.tasks or self.benchmark)
