"""Tables for the terminal, of cells that are plain text."""

from collections.abc import Sequence

from rich.table import Column, Table
from rich.text import Text

SHOWN_QUANTILES = (0.5, 0.95, 1.0)
"""Quantiles of lengths that fit beside the sizes of sources in 80 columns."""


def plain_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", *, lines: bool = True
) -> Table:
    """Make a table whose long cells are folded; without ``heads`` it has no header."""
    columns = [Column(head, overflow="fold") for head in heads or [""] * len(rows[0])]
    table = Table(*columns, title=title or None, show_header=bool(heads), show_lines=lines)
    for row in rows:
        # As Text, since brackets in a plain string would be read as markup.
        table.add_row(*map(Text, row))
    return table
