"""``embedkit blend``: the weighted mean of the weights of several models."""

from pathlib import Path
from typing import Annotated

import typer

from embedkit import api

Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL:SHARE...",
        help="Models, each with its share from 0 to 1, such as runs/mine/model:0.6 starter:0.4.",
    ),
]
Output = Annotated[Path, typer.Option(help="The folder to write.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace an earlier export in the output.")
]


def blend(models: Models, output: Output, overwrite: Overwrite = False) -> None:
    """Write the weighted mean of the weights of models that were trained from one starting point.

    A share of the starting point gives back what fine-tuning lost on other kinds of text.
    """
    typer.echo(api.blend(api.parse_shares(models), output, overwrite=overwrite))
