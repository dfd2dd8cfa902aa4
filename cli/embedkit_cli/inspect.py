"""``embedkit inspect``: what embedkit makes of a file of pairs."""

from typing import Annotated

import typer

from embedkit import api
from embedkit_cli.own_data import Column, Data, Ignore, columns_of

Model = Annotated[str, typer.Option(help="The model whose tokenizer counts the tokens.")]


def inspect(data: Data, column: Column = [], ignore: Ignore = [], model: Model = "starter") -> None:
    """Print what each column of a file becomes, what is odd about its rows, and the first pairs.

    Nothing is written. A manifest or a fine-tuning run reads the same columns.
    """
    from rich.console import Console

    console = Console()
    found = api.inspect(data, columns=columns_of(column), ignore=ignore, model=model)
    for table in found.tables():
        console.print(table)
