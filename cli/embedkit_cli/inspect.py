"""``embedkit inspect``: what embedkit makes of a file of pairs."""

from typing import Annotated

import typer

from embedkit import api
from embedkit.errors import UserError

Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="Pairs of your own: a file, a folder of files, or org/name of the hub.",
    ),
]
Column = Annotated[
    list[str],
    typer.Option(
        metavar="PART=NAME",
        help="Read a part from this column, e.g. positive=answer. May be repeated.",
    ),
]
Ignore = Annotated[
    list[str],
    typer.Option(metavar="NAME", help="Leave this column out. May be repeated."),
]
Model = Annotated[str, typer.Option(help="The model whose tokenizer counts the tokens.")]


def inspect(data: Data, column: Column = [], ignore: Ignore = [], model: Model = "starter") -> None:
    """Print what each column of a file becomes, what is odd about its rows, and the first pairs.

    Nothing is written. A manifest or a fine-tuning run reads the same columns.
    """
    from rich.console import Console

    columns: dict[str, list[str]] = {}
    for word in column:
        part, equals, name = word.partition("=")
        if not equals or not name:
            raise UserError(f"--column {word}: write PART=NAME, e.g. positive=answer")
        columns.setdefault(part, []).append(name)
    one_path = ("label", "concept", "topic", "score")
    named = {part: names[0] if part in one_path else names for part, names in columns.items()}
    console = Console()
    for table in api.inspect(data, columns=named, ignore=ignore, model=model).tables():
        console.print(table)
