"""``embedkit init``, and the options by which ``finetune`` trains on own data."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from embedkit import api
from embedkit.errors import UserError
from embedkit_cli.options import MODEL_HELP, Overrides

if TYPE_CHECKING:
    from embedkit.finetuning.own_data import OwnOptions

DATA_HELP = (
    "Pairs of your own: a file, a folder of files or of datasets, or the hub id of a data set."
)
Columns = Annotated[
    list[str],
    typer.Option(
        metavar="PART=NAME",
        help="With --data, a column whose name does not say its part, e.g. query=Frage. May be "
        "repeated.",
    ),
]
Ignore = Annotated[
    list[str],
    typer.Option(metavar="NAME", help="With --data, a column that plays no part. May be repeated."),
]


def options(
    model: str | None, columns: Sequence[str], ignore: Sequence[str], overrides: Sequence[str]
) -> "OwnOptions":
    """Return what a user says of own data as the arguments of ``finetune`` and ``init``."""
    chosen: OwnOptions = {"columns": dict(map(_named, columns)), "ignore": ignore}
    chosen["overrides"] = overrides
    if model is not None:
        chosen["model"] = model
    return chosen


def init(
    data: Annotated[str, typer.Argument(help=DATA_HELP)],
    output: Annotated[
        Path | None,
        typer.Option(help="A new or empty folder; one with the data's name if it is not given."),
    ] = None,
    model: Annotated[str | None, typer.Option(help=MODEL_HELP)] = None,
    columns: Columns = [],
    ignore: Ignore = [],
    overrides: Overrides = [],
) -> None:
    """Write the recipe and the manifest by which finetune --data would train, for changes."""
    from rich.console import Console

    recipe, choices = api.init(data, output, **options(model, columns, ignore, overrides))
    Console().print(choices)
    typer.echo(f"to train by it: embedkit finetune --recipe {recipe}")


def _named(word: str) -> tuple[str, str]:
    part, equals, name = word.partition("=")
    if not equals or not part or not name:
        raise UserError(f"--columns {word}: write PART=NAME, e.g. query=question")
    return part, name
