"""``embedkit eval-mteb``: score a model on mteb's tasks or on one's own."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from embedkit.errors import UserError
from embedkit_cli.dtype import Precision, check_dtype

Model = Annotated[
    str,
    typer.Option("--model", help="A folder, a hub id, package:<distribution>/<path>, or starter."),
]
Output = Annotated[
    Path | None, typer.Option("--output", help="Results and summary.json are kept here.")
]
Benchmark = Annotated[
    str | None, typer.Option("--benchmark", help='One of mteb\'s, such as "MTEB(eng, v1)".')
]
Tasks = Annotated[
    list[str], typer.Option("--tasks", metavar="NAME...", help="Tasks by their names in mteb.")
]
TaskDirs = Annotated[
    list[Path],
    typer.Option("--task-dir", metavar="DIR", help="A task folder, or a folder of them."),
]
RecipeName = Annotated[
    str | None, typer.Option("--recipe", help="The tasks of this recipe's evaluation.")
]
Instructions = Annotated[
    Literal["none", "paper"] | None,
    typer.Option(
        "--instructions",
        help="paper puts the NeoBERT paper's instructions before the texts of MTEB(eng, v1)'s "
        "tasks; none leaves the model its own prompts. Default: what the recipe says, else none.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Read mteb's data from this mirror: owner/name/..."),
]
TruncateDim = Annotated[
    int | None, typer.Option("--truncate-dim", help="Score the first dimensions alone.")
]
Cache = Annotated[bool, typer.Option(help="Keep vectors, so that no text is encoded twice.")]
CacheSize = Annotated[
    str, typer.Option("--cache-size", help="Of all kept vectors; the least recently used go first.")
]
Estimate = Annotated[
    bool, typer.Option("--estimate", help="Print texts, tokens and time, and score nothing.")
]
ContextDocuments = Annotated[
    int | None,
    typer.Option(
        "--context-documents",
        metavar="N",
        help="That a contextual model reads before each task. Default: as many as it has slots.",
    ),
]
ContextSeed = Annotated[
    int | None, typer.Option("--context-seed", metavar="S", help="Of their draw. Default: 0.")
]
Devices = Annotated[
    int | None, typer.Option("--devices", min=1, help="Start torchrun with as many processes.")
]
More = Annotated[list[str], typer.Argument(hidden=True)]


def eval_mteb(
    model: Model,
    output: Output = None,
    benchmark: Benchmark = None,
    tasks: Tasks = [],
    task_dir: TaskDirs = [],
    recipe: RecipeName = None,
    dtype: Precision = "auto",
    instructions: Instructions = None,
    data_dir: DataDir = None,
    truncate_dim: TruncateDim = None,
    cache: Cache = True,
    cache_size: CacheSize = "20GB",
    context_documents: ContextDocuments = None,
    context_seed: ContextSeed = None,
    estimate: Estimate = False,
    devices: Devices = None,
    more: More = [],
) -> None:
    """Evaluate a model; a second run scores only what is missing.

    Exit code 1: a task failed. The summary names it, and the others are scored.
    """
    if more and not tasks:
        raise UserError(
            f"{' '.join(more)}: an argument without its option; quote names with spaces"
        )
    _check_choice(benchmark, tasks, task_dir, recipe)
    check_dtype(dtype)
    if output is None and not estimate:
        raise UserError("--output is missing: name the folder that the results go to")
    # An estimate is of one device.
    if devices is not None and not estimate and "RANK" not in os.environ:
        _run_on_devices(devices)
        return
    is_main = os.environ.get("RANK", "0") == "0"
    if estimate and not is_main:
        return
    from embedkit import api

    settings: dict[str, Any] = {
        "benchmark": benchmark,
        "recipe": recipe,
        "dtype": dtype,
        "instructions": instructions,
        "data_dir": data_dir,
        "context_documents": context_documents,
        "context_seed": context_seed,
    }
    chosen: list[str | Path] = [*tasks, *more, *task_dir]
    if output is None or estimate:
        typer.echo(api.estimate(model, chosen, **settings).text(), nl=False)
        return
    keep = cache_size if cache else None
    summary = api.evaluate(
        model, chosen, output, truncate_dim=truncate_dim, cache_size=keep, **settings
    )
    if is_main:
        typer.echo(summary.text(), nl=False)
        if summary.failed:
            raise typer.Exit(1)


def _check_choice(
    benchmark: str | None, tasks: list[str], task_dir: list[Path], recipe: str | None
) -> None:
    selectors = {
        "--benchmark": benchmark,
        "--tasks": tasks,
        "--task-dir": task_dir,
        "--recipe": recipe,
    }
    given = [name for name, value in selectors.items() if value]
    if len(given) != 1:
        raise UserError(f"give exactly one of {', '.join(selectors)} (got {len(given)})")
    for folder in task_dir:
        if not folder.is_dir():
            raise UserError(f"--task-dir {folder}: no such folder")


def _run_on_devices(devices: int) -> None:
    """Run this command under torchrun, once for each device, and end as the ranks do."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    ranks = ["--nproc-per-node", str(devices), "-m", "embedkit_cli"]
    try:
        main(["--standalone", *ranks, *sys.argv[1:]])
    except ChildFailedError as failed:
        _, first = failed.get_first_failure()
        # A rank that a signal has ended has the signal's number below zero.
        raise typer.Exit(max(first.exitcode, 1)) from None
