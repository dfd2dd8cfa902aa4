"""Tables as characters, for files, pipes and Markdown, whose words cannot end what holds them."""

import csv
import io
import re
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


def as_markdown(table: Table) -> str:
    """Return a table of rich, without its title, as a table of GitHub's Markdown."""
    heads = [str(column.header) for column in table.columns]
    rules = ["---:" if column.justify == "right" else "---" for column in table.columns]
    rows = zip(*(map(str, column.cells) for column in table.columns), strict=True)
    lines = [map(as_prose, heads), rules, *(map(as_prose, row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def as_prose(text: str) -> str:
    """Return a text as Markdown that shows it in one line, none of its characters as markup."""
    escaped = re.sub(r"([\\`*\[\]|~]|(?<!\w)_|_(?!\w))", r"\\\1", " ".join(text.split()))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def as_code(text: str) -> str:
    """Return a text as a code span of Markdown, where a line break is shown as an escape."""
    shown = text.replace("\r", "\\r").replace("\n", "\\n")
    ticks = "`" * (_longest_run("`", shown) + 1)
    # Markdown strips a space from both ends, or from neither.
    both = shown.startswith(" ") and shown.endswith(" ")
    pad = " " if both or shown.startswith("`") or shown.endswith("`") else ""
    return f"{ticks}{pad}{shown}{pad}{ticks}"


def as_block(text: str, language: str = "") -> str:
    """Return a text as a fenced block of Markdown, whose fence no line of the text can end."""
    fence = "`" * max(3, _longest_run("`", text) + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"


def _longest_run(character: str, text: str) -> int:
    return max(map(len, re.findall(f"{re.escape(character)}+", text)), default=0)
