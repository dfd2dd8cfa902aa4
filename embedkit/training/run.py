"""The course of a run, whatever it trains: check, prepare, resume, train, finish."""

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch
from rich.console import Console
from torch import nn

from embedkit import distributed
from embedkit.recipe import Training
from embedkit.training import run_folder
from embedkit.training.metrics import Metrics, open_trackers
from embedkit.training.run_folder import RunFolder
from embedkit.training.trainer import Batch, Objective, Trainer

BatchT = TypeVar("BatchT", bound=Batch)
EvaluatorT = TypeVar("EvaluatorT", bound="Evaluator")


class Evaluator(Protocol):
    """Interface of an evaluator that measures a model during training; called on every rank."""

    def before(self, start: int) -> None:
        """Measure the model before training starts, or resumes after ``start`` steps."""

    def after_step(self, done: int) -> None:
        """Measure the model after ``done`` steps, if an evaluation is due."""


class TrainingJob(Protocol, Generic[BatchT, EvaluatorT]):
    """Interface of a prepared run: its model, objective, batches, evaluator and export."""

    @property
    def recipe(self) -> Training: ...

    @property
    def facts(self) -> Mapping[str, object]:
        """Facts that must be equal for a run to be resumed: recipe, sources, model, ranks."""
        ...

    @property
    def model(self) -> nn.Module: ...

    @property
    def objective(self) -> Objective[BatchT]: ...

    @property
    def peak_flops(self) -> float | None:
        """Peak of all ranks together, in floating point operations per second, if known."""
        ...

    def batches(self, numbers: range) -> Iterator[BatchT]: ...

    def evaluator(self, folder: RunFolder) -> EvaluatorT: ...

    def finish(self, folder: RunFolder, evaluator: EvaluatorT) -> None:
        """Export the model and run the final evaluation; called on every rank."""
        ...


def run_training(
    prepare: Callable[[torch.device, Console], TrainingJob[BatchT, EvaluatorT]],
    path: Path,
    *,
    resume: bool,
    overwrite: bool,
    allow_world_size_change: bool,
) -> RunFolder:
    """Prepare, train and finish a run in the folder ``path``; under torchrun, on all ranks.

    Args:
        prepare: function that builds the run on a device; the console is silent except on rank 0.
        path: folder of the run.
        resume: whether to continue the run in ``path`` from its newest checkpoint.
        overwrite: whether to replace the run in ``path``.
        allow_world_size_change: whether a resumed run may have another number of ranks.

    Raises:
        UserError: the folder cannot be used for the run, or ``prepare`` raised it.
        Interrupted: the run was asked to stop and has written a checkpoint.
    """
    run_folder.check(path, resume=resume, overwrite=overwrite)
    device = distributed.local_device()
    _be_deterministic(device)
    with distributed.group(device):
        console = Console(quiet=not distributed.is_main())
        job = prepare(device, console)
        folder = distributed.on_main(
            partial(run_folder.claim, path, resume=resume, overwrite=overwrite)
        )
        evaluator = job.evaluator(folder)
        with _metrics(job, folder) as metrics:
            trainer = Trainer(
                job.model,
                job.objective,
                job.batches,
                recipe=job.recipe,
                folder=folder.path,
                facts=job.facts,
                metrics=metrics,
                after_step=evaluator.after_step,
            )
            start = (
                _restore(trainer, job, folder, allow_world_size_change, console) if resume else 0
            )
            distributed.on_main(partial(_begin, job, folder, metrics, start))
            evaluator.before(start)
            trainer.fit(start)
        job.finish(folder, evaluator)
    return folder


def _be_deterministic(device: torch.device) -> None:
    if device.type == "cuda":
        # Atomic additions in a different order would change the numbers of a resumed run.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        os.environ.setdefault("FLASH_ATTENTION_DETERMINISTIC", "1")
        torch.use_deterministic_algorithms(True, warn_only=True)


def _metrics(job: TrainingJob[BatchT, EvaluatorT], folder: RunFolder) -> Metrics:
    config = job.recipe.model_dump(mode="json")
    names = job.recipe.logging.trackers if distributed.is_main() else ()
    return Metrics(
        folder.metrics, open_trackers(names, folder.path, config), peak_flops=job.peak_flops
    )


def _restore(
    trainer: Trainer[BatchT],
    job: TrainingJob[BatchT, EvaluatorT],
    folder: RunFolder,
    allow_world_size_change: bool,
    console: Console,
) -> int:
    # On rank 0 alone, since damaged checkpoints are renamed.
    newest, remarks = distributed.on_main(
        partial(
            run_folder.newest_checkpoint,
            folder,
            job.facts,
            allow_world_size_change=allow_world_size_change,
        )
    )
    for remark in remarks:
        console.print(f"note: {remark}", highlight=False, markup=False, soft_wrap=True)
    if newest is None:
        return 0
    trainer.restore(newest)
    console.print(f"resuming after step {newest.step}", highlight=False)
    return newest.step


def _begin(
    job: TrainingJob[BatchT, EvaluatorT], folder: RunFolder, metrics: Metrics, start: int
) -> None:
    run_folder.describe(folder, job.recipe, job.facts)
    metrics.cut(start)
