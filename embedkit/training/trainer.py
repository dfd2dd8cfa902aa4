"""Trains a run from its start or a checkpoint to its end, with any objective and any batches."""

import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic

import torch
from rich.console import Console
from torch import nn

from embedkit import distributed, rng
from embedkit.distributed import sharding
from embedkit.distributed.interrupt import StopRequest
from embedkit.distributed.progress import show
from embedkit.errors import UserError
from embedkit.recipe import Training
from embedkit.training import checkpoint, flops, run_folder
from embedkit.training.idle_steps import IdleSteps
from embedkit.training.interfaces import BatchT, Evaluator, Objective, Stop
from embedkit.training.metrics import Metrics, Progress, open_trackers, summary_line, truncate_lines
from embedkit.training.optim import build_optimizer, lr_at, set_lr


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob(Generic[BatchT]):
    """A prepared run: what it trains, on which batches, and how it ends."""

    recipe: Training
    facts: Mapping[str, object]
    """Hashes of ``sources`` and ``model``, and what else must be equal for a run to be resumed."""
    model: nn.Module
    objective: Objective[BatchT]
    batches: Callable[[range], Iterator[BatchT]]
    """Function that yields the batches of a range of batch numbers, in order."""
    evaluator: Evaluator
    finish: Callable[[Stop], bool]
    """Function that exports the model and runs the final evaluation; called on every rank. It
    returns whether the evaluation came to its end."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Text files that belong to the run, by their paths in its folder."""
    peak_flops: float | None = None
    """Peak of all ranks together, in floating point operations per second, if known."""


class Interrupted(Exception):  # noqa: N818 - not an error: the run stopped as it was asked to
    """Signal that the run was asked to stop, and can be resumed after ``step`` steps."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.step = step


def run_training(
    prepare: Callable[[Path, torch.device], TrainingJob[BatchT]],
    path: Path,
    *,
    resume: bool,
    overwrite: bool,
    allow_world_size_change: bool,
) -> Path:
    """Prepare, train and finish a run in the folder ``path``; under torchrun, on all ranks.

    Args:
        prepare: function that builds the run on a device. It writes nothing into the folder.
        path: folder of the run.
        resume: whether to continue the run in ``path`` from its newest checkpoint.
        overwrite: whether to replace the run in ``path``.
        allow_world_size_change: whether a resumed run may have another number of ranks.

    Returns:
        The folder that the model is exported to.

    Raises:
        UserError: the folder cannot be used for the run, or ``prepare`` raised it.
        Interrupted: the run was asked to stop, and can be resumed.
    """
    run_folder.check(path, resume=resume, overwrite=overwrite)
    device = distributed.local_device()
    if device.type == "cuda":
        # Atomic additions in a different order would change the numbers of a resumed run.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        os.environ.setdefault("FLASH_ATTENTION_DETERMINISTIC", "1")
        torch.use_deterministic_algorithms(True, warn_only=True)
    with distributed.group(device):
        job = prepare(path, device)
        distributed.on_main(partial(run_folder.claim, path, resume=resume, overwrite=overwrite))
        tables = job.recipe.model_dump(mode="json")
        names = job.recipe.logging.trackers if distributed.is_main() else ()
        trackers = open_trackers(names, path, tables)
        machine = {"world_size": distributed.world_size(), "threads": torch.get_num_threads()}
        facts = {"recipe": tables, **job.facts, **machine}
        with StopRequest() as request:

            def stop() -> bool:
                return request.asked

            with Metrics(path / "metrics.jsonl", trackers, job.peak_flops) as metrics:
                trainer = Trainer(job, path, facts, metrics)
                start = trainer.resume(allow_world_size_change) if resume else 0
                distributed.on_main(
                    partial(run_folder.describe, path, job.recipe, facts, job.files)
                )
                distributed.on_main(partial(truncate_lines, path / "metrics.jsonl", start))
                job.evaluator.before(start, stop)
                if distributed.any_rank(stop(), device):
                    raise Interrupted(start)
                done = trainer.fit(start, stop)
            if not job.finish(stop):
                raise Interrupted(done)
    return path / "model"


class Trainer(Generic[BatchT]):
    """Trains the model of a job for the number of steps that its recipe says.

    Args:
        job: what to train; its model is in fp32, on the device to train on.
        folder: folder of the run, in which ``checkpoints/`` is written.
        facts: facts stored in every checkpoint and compared when a run is resumed.
        metrics: writer that receives the metrics of each step.
    """

    def __init__(
        self, job: TrainingJob[BatchT], folder: Path, facts: Mapping[str, Any], metrics: Metrics
    ) -> None:
        self._model, self._objective, self._batches = job.model, job.objective, job.batches
        assert job.recipe.steps is not None, "epochs are resolved before a run starts"
        self._recipe, self._steps, self._facts = job.recipe, job.recipe.steps, facts
        self._folder, self._metrics, self._evaluator = folder, metrics, job.evaluator
        self._idle = IdleSteps()
        self._optimizer = build_optimizer(self._model, self._recipe.optim)
        self._device = next(self._model.parameters()).device

    def resume(self, allow_world_size_change: bool) -> int:
        """Load the newest checkpoint, if there is one, and return how many steps it has done.

        Raises:
            UserError: the checkpoint belongs to another run, or to another number of ranks.
        """
        find = partial(run_folder.newest_checkpoint, self._folder, self._facts)
        # Rank 0 alone looks for the checkpoint, since it renames damaged ones.
        newest, remarks = distributed.on_main(
            partial(find, allow_world_size_change=allow_world_size_change)
        )
        for remark in remarks:
            show(f"note: {remark}")
        if newest is None:
            return 0
        checkpoint.restore(newest, self._model, self._optimizer)
        show(f"resuming after step {newest.step}")
        return newest.step

    def fit(self, start: int = 0, stop: Stop = lambda: False) -> int:
        """Train from step ``start`` to the last one of the recipe, or until the evaluator ends it.

        Returns:
            The number of steps done.

        Raises:
            Interrupted: ``stop`` returned true, and a checkpoint was written.
        """
        # A run that was stopped or killed after its checkpoint has not evaluated yet.
        if 0 < start < self._steps and self._evaluate(start, stop):
            return start
        per_step = self._recipe.optim.gradient_accumulation_steps
        numbers = range(start * per_step, self._steps * per_step)
        self._model.train()
        console = Console(quiet=not distributed.is_main())
        bar = Progress(console, "step", self._steps, start)
        with _closed_after(self._batches(numbers)) as stream, bar as progress:
            for step in range(start, self._steps):
                began = time.perf_counter()
                source, values = self._step(step, stream)
                flops.wait(self._device)
                values["seconds"] = time.perf_counter() - began
                done = step + 1
                stopping = distributed.any_rank(stop(), self._device)
                saving = stopping or done == self._steps or self._evaluator.takes_long(done)
                saving |= done % self._recipe.checkpoints.every == 0
                idle = self._record(done, source, values, progress, saving=saving)
                if saving or idle:
                    self._save(done)
                if idle:
                    raise UserError(idle)
                if done == self._steps:
                    break
                if stopping:
                    raise Interrupted(done)
                if self._evaluate(done, stop):
                    return done
        return self._steps

    def _evaluate(self, done: int, stop: Stop) -> bool:
        """Have the model evaluated, if it is due, after the checkpoint of a long evaluation.

        Return whether training is over.
        """
        over = self._evaluator.after_step(done, stop)
        if self._evaluator.takes_long(done) and distributed.any_rank(stop(), self._device):
            raise Interrupted(done)
        return over

    def _step(self, step: int, stream: Iterator[BatchT]) -> tuple[str, dict[str, Any]]:
        optim = self._recipe.optim
        self._optimizer.zero_grad()
        collected = []
        scale = 1 / optim.gradient_accumulation_steps
        for micro in range(optim.gradient_accumulation_steps):
            batch = next(stream).to(self._device)
            key = rng.fold_in(self._recipe.seed, "step", step, micro, distributed.rank())
            torch.manual_seed(key)
            values = self._objective.backward(self._model, batch, key=key, scale=scale)
            if lacking := {"loss", "tokens"} - values.keys():
                raise UserError(
                    f"{type(self._objective).__name__}.backward returns no {min(lacking)}: every "
                    "objective returns loss and tokens"
                )
            collected.append(values)
        distributed.average_gradients(self._model.parameters())
        limit = optim.max_grad_norm or float("inf")
        norm = sharding.whole(nn.utils.clip_grad_norm_(self._model.parameters(), limit))
        lr = lr_at(step, self._steps, optim)
        set_lr(self._optimizer, lr)
        self._optimizer.step()
        stacked = {key: torch.stack([values[key] for values in collected]) for key in collected[0]}
        means = {k: v.sum() if k == "tokens" else v.mean() for k, v in stacked.items()}
        return batch.source, {**means, "lr": lr, "grad_norm": norm}

    def _record(
        self, done: int, source: str, values: dict[str, Any], progress: Progress, *, saving: bool
    ) -> str | None:
        """Add a step's metrics, written in blocks; return why the run should stop, if it should."""
        if distributed.is_main():
            self._metrics.add(done, source, values)
        progress.update(progress.task_ids[0], completed=done)
        if not saving and done % self._recipe.logging.every:
            return None

        def written() -> tuple[str, str | None]:
            block = self._metrics.write()
            return summary_line(block), self._idle.add(block)

        # ``on_main`` raises on every rank, so that a loss that is not finite ends all of them.
        summary, idle = distributed.on_main(written)
        progress.remark(done, summary)
        return idle

    def _save(self, done: int) -> None:
        state = checkpoint.captured(self._model, self._optimizer)
        keep = self._recipe.checkpoints.keep
        if distributed.is_main():
            root = self._folder / "checkpoints"
            best = self._evaluator.best_step()
            checkpoint.save(root, done, state, self._facts, keep=keep, best=best)
        distributed.barrier()


@contextmanager
def _closed_after(stream: Iterator[BatchT]) -> Iterator[Iterator[BatchT]]:
    """Close a stream of batches at the end, which stops its worker processes.

    An exception that nobody catches keeps the stream alive, and the process would wait at its exit
    for workers that ignore SIGTERM.
    """
    try:
        yield stream
    finally:
        if isinstance(stream, Generator):
            stream.close()
