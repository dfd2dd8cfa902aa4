"""Tables as characters, for files and pipes."""

import csv
import io
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table


def as_text(table: Table, *, width: int = 100) -> str:
    """Return a table of rich as plain characters."""
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(table)
    return stream.getvalue()


def as_csv(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return rows below the heads of their columns; ``None`` is an empty cell."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([heads, *rows])
    return stream.getvalue()
