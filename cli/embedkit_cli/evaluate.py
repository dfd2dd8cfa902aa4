"""``embedkit eval-mteb``: score a model on mteb's tasks or on one's own."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from embedkit import EvaluationSettings, api
from embedkit.errors import ArgumentError, UserError
from embedkit_cli.interruption import print_scores_so_far
from embedkit_cli.options import Model, given, is_main, recipe_names, with_options

Output = Annotated[Path | None, typer.Option(help="The folder for results and summary.json.")]
Tasks = Annotated[list[str], typer.Option(metavar="NAME...", help="Names of tasks of mteb.")]
TaskDirs = Annotated[
    list[Path],
    typer.Option(metavar="DIR", help="A task folder, or a folder of them. May be repeated."),
]
RecipeName = Annotated[
    str | None,
    typer.Option(
        autocompletion=recipe_names,
        help="A recipe, whose evaluation says what the model is scored on, and how.",
    ),
]
Estimate = Annotated[
    bool,
    typer.Option(
        "--estimate",
        help="Print how many texts and tokens there are and how long they take, and score nothing.",
    ),
]
Verify = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Score this many tasks again, those that took the least time, with stock "
        "sentence-transformers and mteb in fp32, and print the largest difference. The exit code "
        "is 1 if both computed in fp32 and differ by more than 0.01 of 100 points.",
    ),
]
Devices = Annotated[
    int | None, typer.Option(min=1, help="Start torchrun with this many processes.")
]
More = Annotated[list[str], typer.Argument(hidden=True)]


@with_options(EvaluationSettings)
def eval_mteb(
    context: typer.Context,
    model: Model,
    output: Output = None,
    tasks: Tasks = [],
    task_dir: TaskDirs = [],
    recipe: RecipeName = None,
    estimate: Estimate = False,
    verify: Verify = None,
    devices: Devices = None,
    more: More = [],
    **options: Any,
) -> None:
    """Score a model on a benchmark, on tasks of mteb or on tasks of one's own.

    A second run scores only what is missing. If a task fails, the summary names it, the others are
    scored, and the exit code is 1.
    """
    if more and not tasks:
        raise UserError(
            f"{' '.join(more)}: an argument without its option; quote names with spaces"
        )
    # A recipe has settings of its own, over which only options that are given take precedence.
    options = given(context, options)
    _check_choice(options.get("benchmark"), tasks, task_dir, recipe)
    if output is None and not estimate:
        raise UserError("--output is missing: name the folder that the results go to")
    if estimate and verify is not None:
        raise UserError("--verify scores tasks again, and --estimate scores none: leave one out")
    # An estimate is made for one device.
    if devices is not None and not estimate and "RANK" not in os.environ:
        _run_on_devices(devices)
        return
    if estimate and not is_main():
        return
    chosen: list[str | Path] = [*tasks, *more, *task_dir]
    if output is None or estimate:
        typer.echo(api.estimate(model, chosen, recipe=recipe, **options).text(), nl=False)
        return
    with print_scores_so_far():
        summary = api.evaluate(model, chosen, output, recipe=recipe, **options)
        if not is_main():
            return
        typer.echo(summary.text(), nl=False)
        failed = bool(summary.failed)
        if verify is not None and summary.scores:
            checked = api.verify(model, chosen, summary, count=verify, recipe=recipe, **options)
            typer.echo(checked.text(), nl=False)
            failed |= checked.failed
    if failed:
        raise typer.Exit(1)


def _check_choice(
    benchmark: str | None, tasks: list[str], task_dir: list[Path], recipe: str | None
) -> None:
    given = sum(map(bool, (benchmark, tasks, task_dir, recipe)))
    if given != 1:
        names = "--benchmark, --tasks, --task-dir, --recipe"
        raise UserError(f"give exactly one of {names} (got {given})")
    for folder in task_dir:
        if not folder.is_dir():
            raise UserError(f"--task-dir {folder}: no such folder")


def _run_on_devices(devices: int) -> None:
    """Run this command under torchrun, once for each device, and end as the ranks do."""
    import torch
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    gpus = torch.cuda.device_count()
    if 0 < gpus < devices:  # Without a GPU, the ranks share the CPU.
        raise ArgumentError(
            ("devices", f"choose from 1 to {gpus}, the number of GPUs (got {devices})")
        )
    ranks = ["--nproc-per-node", str(devices), "-m", "embedkit_cli"]
    try:
        main(["--standalone", *ranks, *sys.argv[1:]])
    except ChildFailedError as failed:
        _, first = failed.get_first_failure()
        # A rank that a signal has ended has the signal's number below zero.
        raise typer.Exit(max(first.exitcode, 1)) from None
    except SignalException as interrupt:
        raise typer.Exit(128 + interrupt.sigval) from None
