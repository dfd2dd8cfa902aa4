"""The training loop: batches in, steps, checkpoints and metrics out. It knows no loss or data."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from rich.console import Console
from torch import Tensor, nn

from embedkit import distributed, rng
from embedkit.distributed import sharding
from embedkit.errors import UserError
from embedkit.recipe import Training
from embedkit.training import checkpoint, flops
from embedkit.training.interrupt import StopRequest
from embedkit.training.metrics import Metrics, Progress
from embedkit.training.optim import build_optimizer, lr_at, set_lr


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


class Interrupted(Exception):  # noqa: N818 - not an error: the run stopped as it was asked to
    """Signal that the run was asked to stop and has written a checkpoint after ``step`` steps."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.step = step


class Trainer(Generic[BatchT]):
    """Trains a model for a number of steps.

    Args:
        model: model in fp32, on the device to train on.
        objective: objective that turns a batch into gradients.
        batches: function that yields the batches of a range of batch numbers, in order; a step
            takes ``gradient_accumulation_steps`` of them.
        recipe: settings with seed, steps, optimizer, and how often to log and save.
        folder: folder of the run, in which ``checkpoints/`` is written.
        facts: facts stored in every checkpoint and compared when a run is resumed.
        metrics: writer that receives the metrics of each step.
        after_step: function called on every rank between two steps, with the number of steps done.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective[BatchT],
        batches: Callable[[range], Iterator[BatchT]],
        *,
        recipe: Training,
        folder: Path,
        facts: Mapping[str, Any],
        metrics: Metrics,
        after_step: Callable[[int], None],
    ) -> None:
        self._model, self._objective, self._batches = model, objective, batches
        assert recipe.steps is not None, "epochs are resolved before a run starts"
        self._recipe, self._steps, self._facts = recipe, recipe.steps, facts
        self._metrics, self._after_step = metrics, after_step
        self._checkpoints = folder / "checkpoints"
        self._optimizer = build_optimizer(model, recipe.optim)
        self._device = next(model.parameters()).device

    def restore(self, found: checkpoint.Checkpoint) -> None:
        """Load weights and optimizer moments from a checkpoint of the same run."""
        checkpoint.restore(found, self._model, self._optimizer)

    def fit(self, start: int = 0) -> None:
        """Train from step ``start`` to the last step of the recipe.

        Raises:
            Interrupted: SIGTERM or Ctrl-C was received, and a checkpoint was written.
        """
        if 0 < start < self._steps:
            # A run that was stopped or killed after its checkpoint has not called it yet.
            self._after_step(start)
        per_step = self._recipe.optim.gradient_accumulation_steps
        numbers = range(start * per_step, self._steps * per_step)
        stream = self._batches(numbers)
        self._model.train()
        console = Console(quiet=not distributed.is_main())
        with StopRequest() as stop, Progress(console, "step", self._steps, start) as progress:
            for step in range(start, self._steps):
                began = time.perf_counter()
                source, values = self._step(step, stream)
                flops.wait(self._device)
                values["seconds"] = time.perf_counter() - began
                done = step + 1
                stopping = distributed.any_rank(stop.asked, self._device)
                self._record(done, source, values, progress, flush=stopping)
                if stopping or done % self._recipe.checkpoints.every == 0 or done == self._steps:
                    self._save(done)
                if done == self._steps:
                    break
                if stopping:
                    raise Interrupted(done)
                self._after_step(done)

    def _step(self, step: int, stream: Iterator[BatchT]) -> tuple[str, dict[str, Any]]:
        optim = self._recipe.optim
        self._optimizer.zero_grad()
        collected = []
        for micro in range(optim.gradient_accumulation_steps):
            batch = next(stream).to(self._device)
            key = rng.fold_in(self._recipe.seed, "step", step, micro, distributed.rank())
            torch.manual_seed(key)
            scale = 1 / optim.gradient_accumulation_steps
            values = self._objective.backward(self._model, batch, key=key, scale=scale)
            if lacking := {"loss", "tokens"} - values.keys():
                raise UserError(
                    f"{type(self._objective).__name__}.backward returns no {min(lacking)}: every "
                    "objective returns loss and tokens"
                )
            collected.append(values)
        distributed.average_gradients(self._model.parameters())
        norm = self._clip()
        lr = lr_at(step, self._steps, optim)
        set_lr(self._optimizer, lr)
        self._optimizer.step()
        stacked = {key: torch.stack([values[key] for values in collected]) for key in collected[0]}
        means = {k: v.sum() if k == "tokens" else v.mean() for k, v in stacked.items()}
        return batch.source, {**means, "lr": lr, "grad_norm": norm}

    def _clip(self) -> Tensor:
        limit = self._recipe.optim.max_grad_norm or float("inf")
        return sharding.whole(nn.utils.clip_grad_norm_(self._model.parameters(), limit))

    def _record(
        self,
        done: int,
        source: str,
        values: dict[str, Any],
        progress: Progress,
        *,
        flush: bool,
    ) -> None:
        if distributed.is_main():
            self._metrics.add(done, source, values)
        progress.advance()
        saving = done % self._recipe.checkpoints.every == 0
        if flush or saving or done % self._recipe.logging.every == 0 or done == self._steps:
            # ``on_main`` raises on every rank, so that a loss that is not finite ends all of them.
            progress.remark(distributed.on_main(lambda: _line(self._metrics.write())))

    def _save(self, done: int) -> None:
        state = checkpoint.captured(self._model, self._optimizer)
        if distributed.is_main():
            checkpoint.save(
                self._checkpoints, done, state, self._facts, keep=self._recipe.checkpoints.keep
            )
        distributed.barrier()


def _line(block: Sequence[Mapping[str, Any]]) -> str:
    """Return a one-line summary of a block of metrics: loss, learning rate, source, tokens/s.

    Raises:
        UserError: a loss or a gradient norm is not finite.
    """
    for line in block:
        if not math.isfinite(line["loss"] + line["grad_norm"]):
            raise UserError(
                f"step {line['step']} ({line['source']}): loss {line['loss']}, gradient norm "
                f"{line['grad_norm']}; start anew with a lower optim.lr or more optim.warmup_steps"
            )
    rate = sum(line["tokens"] for line in block) / sum(line["seconds"] for line in block)
    last, sources = block[-1], {line["source"] for line in block}
    source = f"  {last['source']}" if len(sources) == 1 else ""
    return f"loss {last['loss']:.3f}  lr {last['lr']:.1e}{source}  {rate:,.0f} tokens/s"
