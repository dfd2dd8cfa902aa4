"""``embedkit export``: a model in a form that others read."""

from pathlib import Path
from typing import Annotated

import typer

from embedkit.errors import UserError

_TARGETS = ("eurobert", "neobert", "onnx")

Model = Annotated[
    str,
    typer.Option("--model", help="A folder, a hub id, package:<distribution>/<path>, or starter."),
]
To = Annotated[
    str,
    typer.Option(
        "--to",
        help="eurobert: a NeoBERT as a stock sentence-transformers folder. neobert: its authors' "
        "layout. onnx: any encoder as a graph (extra onnx).",
    ),
]
Output = Annotated[Path, typer.Option("--output", help="The folder to write.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace an earlier export in the output.")
]


def export(model: Model, to: To, output: Output, overwrite: Overwrite = False) -> None:
    """Write a model in a form that others read; whole or not at all."""
    if to not in _TARGETS:
        raise UserError(f"--to {to}: choose {', '.join(_TARGETS)}")
    from embedkit.models import export as exporting

    typer.echo(exporting.export(model, output, to=to, overwrite=overwrite))
