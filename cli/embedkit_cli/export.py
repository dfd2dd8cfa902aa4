"""``embedkit export``: a model in a form that others read."""

from pathlib import Path
from typing import Annotated

import typer

from embedkit import api
from embedkit_cli.options import Model

To = Annotated[
    api.ExportTarget,
    typer.Option(
        help="eurobert writes a NeoBERT as a stock sentence-transformers folder, neobert writes it "
        "in its authors' layout, onnx writes any encoder as a graph (extra onnx), and "
        "sentence-transformers writes any model, also of two stages, as a folder of that library.",
    ),
]
Output = Annotated[Path, typer.Option(help="The folder to write.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace an earlier export in the output.")
]


def export(model: Model, output: Output, to: To = "eurobert", overwrite: Overwrite = False) -> None:
    """Write a model in a form that other programs read, whole or not at all."""
    typer.echo(api.export(model, output, to=to, overwrite=overwrite))
