"""``embedkit cluster``: contextual batches for the sources of a recipe."""

from pathlib import Path
from typing import Annotated, Any

import typer

from embedkit import ClusteringSettings, api
from embedkit_cli.options import Overrides, RecipeName, is_main, with_options

Output = Annotated[
    Path, typer.Option(help="The folder for the batches, the surrogate's vectors and a report.")
]
Surrogate = Annotated[
    str,
    typer.Option(
        metavar="MODEL",
        help="The model by whose vectors pairs are near each other: a folder, a hub id, "
        "package:<distribution>/<path>, or starter.",
    ),
]


@with_options(ClusteringSettings)
def cluster(
    recipe: RecipeName,
    output: Output,
    surrogate: Surrogate = api.SURROGATE,
    overrides: Overrides = [],
    **options: Any,
) -> None:
    """Divide the sources of a recipe into batches of pairs that are near each other.

    Under torchrun the command runs on every rank. After an interruption the same command continues.
    """
    api.cluster(api.load_recipe(recipe, overrides), output, surrogate=surrogate, **options)
    if is_main():
        typer.echo((output / "report.md").read_text(encoding="utf-8"), nl=False)
