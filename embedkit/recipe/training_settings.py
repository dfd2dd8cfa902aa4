"""What every recipe has, whatever it trains."""

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
    """Not applied to norms and biases; ``adam`` adds it to the gradient instead of the weight."""
    warmup_steps: NonNegativeInt = 0
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    min_lr_ratio: NonNegativeFloat = 0.0
    """What is left of ``lr`` at the end of the decay under ``linear`` and ``cosine``."""
    decay_until: float = Field(default=1.0, gt=0, le=1)
    """Share of all steps after which the rate has come down, and stays."""
    max_grad_norm: NonNegativeFloat = 1.0
    """Largest norm of the whole gradient. 0 turns clipping off."""
    gradient_accumulation_steps: PositiveInt = 1
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


class Training(Section):
    """What every run has, whatever it trains."""

    seed: NonNegativeInt = 0
    steps: PositiveInt | None = None
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """``auto`` takes bf16 autocast where the device has it natively, else fp32."""
    optim: Optim
    checkpoints: Checkpoints = Checkpoints()
    logging: Logging = Logging()


RecipeT = TypeVar("RecipeT", bound=Training)
