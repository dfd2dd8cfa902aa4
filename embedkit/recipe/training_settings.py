"""Settings that all recipes share: mixtures, optimizer, checkpoints, logging."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from embedkit.config import Section
from embedkit.errors import UserError


class Mix(Section):
    """A source in a mixture."""

    manifest: str
    """The source's manifest: a name under ``data_manifests/`` without ``.toml``, a path, or a key
    of ``sources=``."""
    weight: PositiveFloat | None = None
    """Share of the draws that read this source, before normalisation; a step of fine-tuning is one
    draw. Weights are set for every source of a mixture or for none. Without weights, a source of
    text comes up by its rows, and a source of pairs by ``data.alpha``."""


class Optim(Section):
    """The optimizer, and the course of its learning rate."""

    name: Literal["adamw", "adam"] = "adamw"
    """The optimizer is Adam with decoupled weight decay (adamw) or with an L2 penalty (adam)."""
    lr: PositiveFloat
    """Learning rate at the end of the warmup, which is its highest."""
    betas: tuple[float, float] = Field(default=(0.9, 0.999), strict=False)
    """Decay rates of Adam's running means of the gradient and of its square."""
    eps: PositiveFloat = 1e-8
    """This number is added to the denominator of Adam's steps."""
    weight_decay: NonNegativeFloat = 0.01
    """Weight decay does not apply to norms and biases. ``adam`` adds it to the gradient instead of
    the weight."""
    warmup_steps: NonNegativeInt = 0
    """The learning rate rises linearly from 0 for this many steps."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """After the warmup the learning rate stays (constant) or falls to ``min_lr_ratio`` of ``lr``
    along a line or half a cosine."""
    min_lr_ratio: NonNegativeFloat = 0.0
    """Share of ``lr`` that is left at the end of the decay under ``linear`` and ``cosine``."""
    decay_until: float = Field(default=1.0, gt=0, le=1)
    """Share of all steps at which the decay of the learning rate ends."""
    max_grad_norm: NonNegativeFloat = 1.0
    """The whole gradient is scaled down to this norm where it is larger. 0 turns clipping off."""
    gradient_accumulation_steps: PositiveInt = 1
    """One step takes the mean gradient of this many batches. Each batch keeps its own negatives."""


class Checkpoints(Section):
    """Interval at which a run writes checkpoints, and the number it keeps."""

    every: PositiveInt = 500
    """Number of steps between two checkpoints. The last step always makes one."""
    keep: PositiveInt = 2
    """Number of checkpoints that stay on disk, the newest ones."""


class Logging(Section):
    """Destinations of the metrics of a run."""

    every: PositiveInt = 10
    """Number of steps between two writes of ``metrics.jsonl``, which has a line for every step."""
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = Field(
        default=(), strict=False
    )
    """The metrics also go to these trackers (extra ``tracking``)."""


class Training(Section):
    """Settings of every run, whether pretraining or fine-tuning."""

    seed: NonNegativeInt = 0
    """Random seed for the order of the data, dropout and all else that a run draws."""
    steps: PositiveInt | None = None
    """Length of the run in optimizer steps."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Precision of training. ``auto`` takes bf16 autocast if the device supports it natively, else
    fp32."""
    optim: Optim
    """The optimizer, and the course of its learning rate."""
    checkpoints: Checkpoints = Checkpoints()
    """Interval at which the run writes checkpoints, and the number it keeps."""
    logging: Logging = Logging()
    """Destinations of the metrics of the run."""


RecipeT = TypeVar("RecipeT", bound=Training)


def weights_of(mix: Sequence[Mix]) -> list[float]:
    """Return the weights that a mixture sets, which have to be for each source or for none."""
    weights = [source.weight for source in mix if source.weight is not None]
    if weights and len(weights) < len(mix):
        missing = [source.manifest for source in mix if source.weight is None]
        raise ValueError(
            f"weight is missing for {', '.join(missing)}: give every source one, or none"
        )
    return weights


def manifests_of(mix: Sequence[Mix], given: Mapping[str, object]) -> list[str]:
    """Return the manifests of a mixture, each once; it has to mention the sources in ``given``."""
    names = list(dict.fromkeys(source.manifest for source in mix))
    if unknown := sorted(set(given) - set(names)):
        raise UserError(
            f"sources: {', '.join(unknown)} is not in the recipe's data.mix, which has "
            f"{', '.join(names)}"
        )
    return names
