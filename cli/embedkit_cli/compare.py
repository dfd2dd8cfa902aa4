"""``embedkit compare``: evaluations side by side, in the shape of the paper's Table 4."""

from pathlib import Path
from typing import Annotated, Any

import typer

from embedkit import ComparisonSettings, api
from embedkit_cli.options import with_options

Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...", help="Folders of embedkit finetune, or outputs of embedkit eval-mteb."
    ),
]
Format = Annotated[
    api.ComparisonFormat,
    typer.Option("--format", help="The table is written in this format."),
]


@with_options(ComparisonSettings)
def compare(runs: Runs = [], format_: Format = "text", **options: Any) -> None:
    """Compare evaluations: a row for each run, with the means of each type of task.

    Differences are to the first run, or to the first group if there is no single run. They are over
    the tasks that all runs have a score of.
    """
    typer.echo(api.format_comparison(api.compare(runs, **options), format_), nl=False)
