"""Interfaces that the training loop requires of batches, objectives and evaluators."""

from collections.abc import Callable
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor, nn


class Batch(Protocol):
    """Interface that the training loop requires of a batch."""

    @property
    def source(self) -> str: ...

    def to(self, device: torch.device) -> Self: ...


BatchT = TypeVar("BatchT", bound=Batch)
BatchT_contra = TypeVar("BatchT_contra", bound=Batch, contravariant=True)


class Objective(Protocol[BatchT_contra]):
    """Interface of an objective, which turns a batch into gradients."""

    def backward(
        self, model: nn.Module, batch: BatchT_contra, *, key: int, scale: float
    ) -> dict[str, Tensor]:
        """Add ``scale`` times the gradient of the batch's loss; return the batch's metrics.

        The metrics are scalars over all ranks, and include ``loss`` and the number of ``tokens``.
        torch's generator is seeded with ``key`` before every call.
        """
        ...


Stop = Callable[[], bool]
"""Returns whether this process was asked to stop."""


class Evaluator(Protocol):
    """Interface of an evaluator that measures a model during training; called on every rank.

    A method leaves out the rest of an evaluation once rank 0 is asked to stop. A resumed run calls
    the method again, which then measures only the rest.
    """

    def before(self, start: int, stop: Stop) -> None:
        """Measure the model before training starts, or resumes after ``start`` steps."""

    def takes_long(self, done: int) -> bool:
        """Return whether a checkpoint is worth its time before ``after_step(done)``."""

    def after_step(self, done: int, stop: Stop) -> bool:
        """Measure the model after ``done`` steps, if an evaluation is due.

        Return whether training is over, which is the same on every rank.
        """
        ...

    def best_step(self) -> int | None:
        """Return the step whose checkpoint has to stay on disk, if there is one."""
