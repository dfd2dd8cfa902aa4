"""``embedkit mine``: hard negatives for a source of pairs."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from embedkit import MiningSettings, api
from embedkit.errors import UserError
from embedkit_cli.options import Model, manifest_names, with_options

Source = Annotated[
    str,
    typer.Option(
        autocompletion=manifest_names,
        help="The source of pairs: a manifest's name under data_manifests/, or its path.",
    ),
]
Output = Annotated[
    Path, typer.Option(help="The folder to write; the new manifest in it has its name.")
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Start anew, and replace what was mined before.")
]


@with_options(MiningSettings)
def mine(
    source: Source, model: Model, output: Output, overwrite: Overwrite = False, **options: Any
) -> None:
    """Find hard negatives for every pair of a source, and write them as a new source.

    The new source is for embedkit finetune. The output is written whole or not at all; after an
    interruption the same command continues.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("embedkit mine works in one process: start it without torchrun")
    mined = api.mine(source, model, output, overwrite=overwrite, **options)
    typer.echo(mined.audit.text())
    typer.echo(f"manifest: {mined.manifest}")
