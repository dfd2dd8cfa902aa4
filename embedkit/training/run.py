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
    """What looks at a model while it is trained. Called on every rank."""

    def before(self, start: int) -> None:
        """Measure before the first step, or before the step after ``start``."""

    def after_step(self, done: int) -> None:
        """Measure between two steps, if it is time."""


class TrainingJob(Protocol, Generic[BatchT, EvaluatorT]):
    """What a run is made of, before it touches its folder."""

    @property
    def recipe(self) -> Training: ...

    @property
    def facts(self) -> Mapping[str, object]:
        """What decides whether another run is the same one."""
        ...

    @property
    def model(self) -> nn.Module: ...

    @property
    def objective(self) -> Objective[BatchT]: ...

    @property
    def peak_flops(self) -> float | None:
        """Floating point operations a second that all ranks could do at best."""
        ...

    def batches(self, numbers: range) -> Iterator[BatchT]: ...

    def evaluator(self, folder: RunFolder) -> EvaluatorT: ...

    def finish(self, folder: RunFolder, evaluator: EvaluatorT) -> None:
        """Export, and measure what is measured at the end. Called on every rank."""
        ...


def run_training(
    prepare: Callable[[torch.device, Console], TrainingJob[BatchT, EvaluatorT]],
    path: Path,
    *,
    resume: bool,
    overwrite: bool,
    allow_world_size_change: bool,
) -> RunFolder:
    """Take a run from its preparation to its end. Under torchrun, on all ranks.

    Raises:
        UserError: the folder is not as it should be, or ``prepare`` found a mistake.
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
        # Atomic additions in another order would make a resumed run another run.
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
    # By one rank, since it renames what is damaged.
    found, remarks = distributed.on_main(
        partial(
            run_folder.newest_checkpoint,
            folder,
            job.facts,
            allow_world_size_change=allow_world_size_change,
        )
    )
    for remark in remarks:
        console.print(f"note: {remark}", highlight=False, markup=False, soft_wrap=True)
    if found is None:
        return 0
    trainer.restore(found)
    console.print(f"resuming after step {found.step}", highlight=False)
    return found.step


def _begin(
    job: TrainingJob[BatchT, EvaluatorT], folder: RunFolder, metrics: Metrics, start: int
) -> None:
    run_folder.describe(folder, job.recipe, job.facts)
    metrics.cut(start)
