"""The recipe of a run: one typed, frozen, closed value, read from TOML."""

import difflib
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from embedkit.errors import UserError


class Section(BaseModel):
    """A TOML table: immutable, strictly typed, and closed to unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


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
    max_query_tokens: PositiveInt = 512
    max_document_tokens: PositiveInt = 512
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
    """What is left of ``lr`` at the last step under ``linear`` and ``cosine``."""
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


class Recipe(Section):
    seed: NonNegativeInt = 0
    steps: PositiveInt | None = None
    epochs: PositiveFloat | None = None
    """Passes over the mixture, resolved to steps. Give exactly one of ``steps`` and ``epochs``."""
    fp32_steps: PositiveInt | None = None
    """Steps in place of ``steps`` where ``precision = "auto"`` falls back to fp32."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """``auto`` takes bf16 autocast where the device has it natively, else fp32."""
    model: str
    """A hub id, a folder, ``package:<distribution>/<path>``, or ``starter``."""
    embedder: Embedder = Embedder()
    data: Data
    objective: Contrastive = Contrastive()
    optim: Optim
    checkpoints: Checkpoints = Checkpoints()
    logging: Logging = Logging()
    evaluation: Evaluation = Evaluation()

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give exactly one of steps and epochs")
        if self.fp32_steps is not None and (self.steps is None or self.precision != "auto"):
            raise ValueError('fp32_steps needs steps and precision = "auto"')
        return self


SectionT = TypeVar("SectionT", bound=Section)


def shipped(folder: str) -> Path:
    """The folder ``recipes`` or ``data_manifests``, in a wheel or in a checkout."""
    installed = Path(str(resources.files("embedkit"))) / folder
    return installed if installed.is_dir() else Path(__file__).parents[1] / folder


def find(folder: str, name: str) -> Path:
    """The TOML file called ``name``: a path, or a name under a shipped folder without ``.toml``."""
    if name.endswith(".toml"):
        path = Path(expand(name))
        if path.is_file():
            return path
        raise UserError(f"{name}: no such file")
    path = shipped(folder) / f"{name}.toml"
    if path.is_file():
        return path
    known = sorted(
        str(p.relative_to(shipped(folder)).with_suffix("")) for p in shipped(folder).rglob("*.toml")
    )
    raise UserError(
        f"{name}: not a name under {folder}/ ({', '.join(known)}); a path ends in .toml"
    )


def expand(path: str) -> str:
    """Resolve a leading ``$EMBEDKIT_DATA`` and ``~``.

    Raises:
        UserError: the path starts with ``$EMBEDKIT_DATA`` and the variable is not set.
    """
    if path.startswith("$EMBEDKIT_DATA") and "EMBEDKIT_DATA" not in os.environ:
        raise UserError(f"{path}: set EMBEDKIT_DATA to the folder that holds the data")
    return os.path.expandvars(str(Path(path).expanduser()))


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; what is wrong with it is one line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None


def validated(section: type[SectionT], tables: Mapping[str, Any], origin: str) -> SectionT:
    """Build ``section`` from ``tables``; every mistake in them becomes one line.

    Raises:
        UserError: names ``origin``, the dotted keys and what they should be.
    """
    try:
        return section.model_validate(tables)
    except ValidationError as error:
        known = _field_names(section)
        mistakes = "; ".join(_mistake(each, known) for each in error.errors(include_url=False))
        raise UserError(f"{origin}: {mistakes}") from None


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe and apply ``dotted.key=value`` overrides; values are TOML or bare words."""
    path = find("recipes", name)
    tables = read_toml(path)
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise UserError(f"--set {override}: write KEY=VALUE, e.g. optim.lr=3e-5")
        _assign(tables, key.strip(), _parse(value.strip()))
    return validated(Recipe, tables, str(path))


def differences(then: Any, now: Any, key: str = "") -> list[str]:
    """``key: then -> now`` for every leaf of two nested tables that differs."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        keys = dict.fromkeys([*then, *now])
        dotted = {name: f"{key}.{name}" if key else str(name) for name in keys}
        nested = [differences(then.get(k), now.get(k), dotted[k]) for k in keys]
        return [line for lines in nested for line in lines]
    return [] if then == now else [f"{key}: {_short(then)} -> {_short(now)}"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _mistake(error: Mapping[str, Any], known: set[str]) -> str:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(error["loc"][-1]), known, n=1)
        return f"{where}: there is no such key" + (f", did you mean {near[0]}?" if near else "")
    message = str(error["msg"]).removeprefix("Value error, ")
    shown = "" if error["type"] in {"missing", "value_error"} else f" (got {error['input']!r})"
    return f"{where}: {message}{shown}" if where else f"{message}{shown}"


def _field_names(annotation: Any) -> set[str]:
    """The names of all fields of a section and of the sections in it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields
        return set(fields).union(*(_field_names(each.annotation) for each in fields.values()))
    return set[str]().union(*map(_field_names, get_args(annotation)))


def _assign(tables: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        tables = tables.setdefault(parent, {})
        if not isinstance(tables, dict):
            raise UserError(f"--set {key}: {parent} is a value, not a table")
    tables[last] = value


def _parse(value: str) -> Any:
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return value
