"""``embedkit deploy-check``: an exported model in the tools that will serve it."""

from pathlib import Path
from typing import Annotated

import rich
import typer

from embedkit import api
from embedkit_cli.options import Model

Reference = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="The model whose vectors are expected, by default the one that is checked; an ONNX "
        "export needs it.",
    ),
]
Python = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="The Python in whose environment the tools are installed, by default this one.",
    ),
]


def deploy_check(model: Model, reference: Reference = None, python: Python = None) -> None:
    """Open an exported model in the tools that are installed, and compare their vectors.

    The exit code is 1 if a tool fails, or if its vectors differ by more than 1e-4.
    """
    checked = api.deploy_check(model, reference=reference, python=python)
    rich.print(checked.table())
    if not checked.is_sound:
        raise typer.Exit(1)
