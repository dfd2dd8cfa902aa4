"""``embedkit failures``: the queries that one evaluation answers better than another."""

from pathlib import Path
from typing import Annotated, Any

import typer

from embedkit import FailuresSettings, api
from embedkit_cli.options import with_options

First = Annotated[
    Path, typer.Argument(metavar="A", help="A folder of embedkit finetune or embedkit eval-mteb.")
]
Second = Annotated[Path, typer.Argument(metavar="B", help="The folder to compare with it.")]
Format = Annotated[
    api.FailuresFormat,
    typer.Option(
        "--format", help="The list is written in this format; csv and json have whole texts."
    ),
]


@with_options(FailuresSettings)
def failures(first: First, second: Second, format_: Format = "text", **options: Any) -> None:
    """List the queries that run B wins and loses against run A, and what they look like.

    Each has its text, the documents in front in the run that does worse, and the relevant ones.
    """
    typer.echo(api.format_failures(api.failures(first, second, **options), format_), nl=False)
