"""``embedkit init``, and the options by which commands read own data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from embedkit import api
from embedkit.errors import UserError
from embedkit_cli.options import MODEL_HELP, Overrides

DATA_HELP = "Pairs of your own: a file, a folder of files, or org/name of the hub."
Data = Annotated[str, typer.Argument(metavar="DATA", help=DATA_HELP)]
Column = Annotated[
    list[str],
    typer.Option(
        metavar="PART=NAME",
        help="Read a part of own data from this column, e.g. positive=answer. May be repeated.",
    ),
]
Ignore = Annotated[
    list[str],
    typer.Option(metavar="NAME", help="Leave this column of own data out. May be repeated."),
]


def options(
    model: str | None, columns: Sequence[str], ignore: Sequence[str], overrides: Sequence[str]
) -> "api.OwnOptions":
    """Return what a user says of own data as the arguments of ``finetune`` and ``init``."""
    chosen: api.OwnOptions = {}
    if columns:
        chosen["columns"] = columns_of(columns)
    if ignore:
        chosen["ignore"] = ignore
    if overrides:
        chosen["overrides"] = overrides
    if model is not None:
        chosen["model"] = model
    return chosen


def init(
    data: Data,
    output: Annotated[
        Path | None,
        typer.Option(help="A new or empty folder; one with the data's name if it is not given."),
    ] = None,
    model: Annotated[str | None, typer.Option(help=MODEL_HELP)] = None,
    column: Column = [],
    ignore: Ignore = [],
    overrides: Overrides = [],
) -> None:
    """Write the recipe and the manifest by which finetune --data would train, for changes."""
    from rich.console import Console

    recipe, choices = api.init(data, output, **options(model, column, ignore, overrides))
    Console().print(choices)
    typer.echo(f"to train by it: embedkit finetune --recipe {recipe}")


def columns_of(words: Sequence[str]) -> dict[str, str | list[str]]:
    """Return the columns that words ``PART=NAME`` name by their parts."""
    columns: dict[str, list[str]] = {}
    for word in words:
        part, equals, name = word.partition("=")
        if not equals or not name:
            raise UserError(f"--column {word}: write PART=NAME, e.g. positive=answer")
        columns.setdefault(part, []).append(name)
    one_path = ("label", "concept", "topic", "score")
    return {part: names[0] if part in one_path else names for part, names in columns.items()}
