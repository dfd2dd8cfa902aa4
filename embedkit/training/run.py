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
MeasuringT = TypeVar("MeasuringT", bound="Measuring")


class Measuring(Protocol):
    """What looks at a model while it is trained. Called on every rank."""

    def before(self, start: int) -> None:
        """Measure before the first step, or before the step after ``start``."""

    def after_step(self, done: int) -> None:
        """Measure between two steps, if it is time."""


class Run(Protocol, Generic[BatchT, MeasuringT]):
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
    def peak(self) -> float | None:
        """Floating point operations a second that all ranks could do at best."""
        ...

    def batches(self, numbers: range) -> Iterator[BatchT]: ...

    def measuring(self, folder: RunFolder) -> MeasuringT: ...

    def finish(self, folder: RunFolder, measuring: MeasuringT) -> None:
        """Export, and measure what is measured at the end. Called on every rank."""
        ...


def follow(
    prepare: Callable[[torch.device, Console], Run[BatchT, MeasuringT]],
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
        run = prepare(device, console)
        folder = distributed.on_main(
            partial(run_folder.claim, path, resume=resume, overwrite=overwrite)
        )
        measuring = run.measuring(folder)
        with _metrics(run, folder) as metrics:
            trainer = Trainer(
                run.model,
                run.objective,
                run.batches,
                recipe=run.recipe,
                folder=folder.path,
                facts=run.facts,
                metrics=metrics,
                after_step=measuring.after_step,
            )
            start = (
                _restore(trainer, run, folder, allow_world_size_change, console) if resume else 0
            )
            distributed.on_main(partial(_begin, run, folder, metrics, start))
            measuring.before(start)
            trainer.fit(start)
        run.finish(folder, measuring)
    return folder


def _be_deterministic(device: torch.device) -> None:
    if device.type == "cuda":
        # Atomic additions in another order would make a resumed run another run.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        os.environ.setdefault("FLASH_ATTENTION_DETERMINISTIC", "1")
        torch.use_deterministic_algorithms(True, warn_only=True)


def _metrics(run: Run[BatchT, MeasuringT], folder: RunFolder) -> Metrics:
    config = run.recipe.model_dump(mode="json")
    names = run.recipe.logging.trackers if distributed.is_main() else ()
    return Metrics(folder.metrics, open_trackers(names, folder.path, config), peak=run.peak)


def _restore(
    trainer: Trainer[BatchT],
    run: Run[BatchT, MeasuringT],
    folder: RunFolder,
    allow_world_size_change: bool,
    console: Console,
) -> int:
    found, remarks = run_folder.newest_checkpoint(
        folder, run.facts, allow_world_size_change=allow_world_size_change
    )
    for remark in remarks:
        console.print(f"note: {remark}", highlight=False, markup=False, soft_wrap=True)
    if found is None:
        return 0
    trainer.restore(found)
    console.print(f"resuming after step {found.step}", highlight=False)
    return found.step


def _begin(run: Run[BatchT, MeasuringT], folder: RunFolder, metrics: Metrics, start: int) -> None:
    run_folder.describe(folder, run.recipe, run.facts)
    metrics.cut(start)
