"""Settings that pretraining and fine-tuning recipes share: optimizer, checkpoints, logging."""

from typing import Literal, TypeVar

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

from embedkit.config import Section


class Optim(Section):
    name: Literal["adamw", "adam"] = "adamw"
    lr: PositiveFloat
    betas: tuple[float, float] = Field(default=(0.9, 0.999), strict=False)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.01
    """Weight decay, not applied to norms and biases. ``adamw`` decays the weights themselves,
    ``adam`` adds the decay to the gradient."""
    warmup_steps: NonNegativeInt = 0
    """Number of steps of linear warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """Course of the learning rate after the warm-up."""
    min_lr_ratio: NonNegativeFloat = 0.0
    """Learning rate at the end of a ``linear`` or ``cosine`` decay, as a share of ``lr``."""
    decay_until: float = Field(default=1.0, gt=0, le=1)
    """Share of all steps at which the decay ends; the learning rate is constant from there."""
    max_grad_norm: NonNegativeFloat = 1.0
    """Norm to which the gradient of all parameters together is clipped. 0 turns clipping off."""
    gradient_accumulation_steps: PositiveInt = 1
    """Number of batches whose mean gradient makes one step. Negatives are not shared among them."""


class Checkpoints(Section):
    every: PositiveInt = 500
    """Steps between two checkpoints. The last step always makes one."""
    keep: PositiveInt = 2
    """Number of newest checkpoints to keep on disk; older ones are deleted."""


class Logging(Section):
    every: PositiveInt = 10
    """Steps between two writes of ``metrics.jsonl``, which has a line for every step."""
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = Field(
        default=(), strict=False
    )
    """Experiment trackers that receive the metrics of every step."""


class Training(Section):
    """Settings of every run, whether pretraining or fine-tuning."""

    seed: NonNegativeInt = 0
    """Random seed of the whole run."""
    steps: PositiveInt | None = None
    """Number of optimizer steps."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Precision of training. ``auto`` takes bf16 autocast if the device supports it natively, else
    fp32."""
    optim: Optim
    checkpoints: Checkpoints = Checkpoints()
    logging: Logging = Logging()


RecipeT = TypeVar("RecipeT", bound=Training)
