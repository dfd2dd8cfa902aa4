"""``embedkit compare``: evaluations side by side, in the shape of the paper's Table 4."""

from pathlib import Path
from typing import Annotated

import typer

from embedkit.errors import UserError

Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...", help="Folders of embedkit finetune, or outputs of embedkit eval-mteb."
    ),
]
Format = Annotated[str, typer.Option("--format", help="text, csv, latex or markdown.")]
Paper = Annotated[bool, typer.Option("--paper", help="Add the published rows of Table 4.")]


def compare(runs: Runs, format_: Format = "text", paper: Paper = False) -> None:
    """Print the means of each type of task, a row a run; differences are to the first run."""
    from embedkit.evaluation.comparing.comparison import compare as set_side_by_side
    from embedkit.evaluation.comparing.comparison import read_run
    from embedkit.evaluation.comparing.formats import FORMATS

    if format_ not in FORMATS:
        raise UserError(f"--format {format_}: must be {', '.join(FORMATS)}")
    comparison = set_side_by_side([read_run(run) for run in runs], paper=paper)
    typer.echo(FORMATS[format_](comparison), nl=False)
