"""``embedkit eval-mteb``: score a model on mteb's tasks or on one's own."""

from pathlib import Path
from typing import Annotated

import typer

from embedkit.errors import UserError

Model = Annotated[
    str,
    typer.Option("--model", help="A folder, a hub id, package:<distribution>/<path>, or starter."),
]
Output = Annotated[Path, typer.Option("--output", help="Results and summary.json are kept here.")]
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
Precision = Annotated[
    str, typer.Option("--dtype", help="auto, bf16, fp16 or fp32; auto: bf16 where it is native.")
]
Instructions = Annotated[
    bool, typer.Option(help="Use the NeoBERT paper's instruction of each task that has one.")
]
More = Annotated[list[str], typer.Argument(hidden=True)]


def eval_mteb(
    model: Model,
    output: Output,
    benchmark: Benchmark = None,
    tasks: Tasks = [],
    task_dir: TaskDirs = [],
    recipe: RecipeName = None,
    dtype: Precision = "auto",
    instructions: Instructions = True,
    more: More = [],
) -> None:
    """Evaluate a model; a second run scores only what is missing.

    Exit code 1: a task failed. The summary names it, and the others are scored.
    """
    if more and not tasks:
        raise UserError(
            f"{' '.join(more)}: an argument without its option; quote names with spaces"
        )
    selectors = {
        "--benchmark": benchmark,
        "--tasks": tasks,
        "--task-dir": task_dir,
        "--recipe": recipe,
    }
    given = [name for name, value in selectors.items() if value]
    if len(given) != 1:
        raise UserError(f"give exactly one of {', '.join(selectors)} (got {len(given)})")
    if dtype not in ("auto", "bf16", "fp16", "fp32"):
        raise UserError(f"--dtype {dtype}: must be auto, bf16, fp16 or fp32")
    for folder in task_dir:
        if not folder.is_dir():
            raise UserError(f"--task-dir {folder}: no such folder")
    from embedkit import runs

    summary = runs.evaluate(
        model,
        tasks=[*tasks, *more, *task_dir],
        benchmark=benchmark,
        recipe=recipe,
        output=output,
        dtype=dtype,
        instructions=instructions,
    )
    typer.echo(summary.text(), nl=False)
    if summary.failed:
        raise typer.Exit(1)
