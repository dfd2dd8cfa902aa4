"""A comparison as text, CSV, LaTeX or Markdown."""

import csv
import io
from collections.abc import Callable

from rich import box
from rich.table import Table
from rich.text import Text

from embedkit.evaluation.comparing.comparison import (
    LEVEL,
    RESAMPLES,
    SEED,
    Comparison,
    Row,
    value_of,
)
from embedkit.evaluation.settings import ComparisonFormat
from embedkit.evaluation.summary import as_text

_SHORT = {
    "Classification": "Class.",
    "Clustering": "Clust.",
    "PairClassification": "PairClass.",
    "Reranking": "Rerank.",
    "Retrieval": "Retr.",
    "Summarization": "Summ.",
}
"""The paper's heads, which fit on a page."""

Mark = Callable[[str], str]


def as_plain(comparison: Comparison) -> str:
    """For a terminal; an asterisk marks the best."""
    table = Table(box=box.SIMPLE_HEAD)
    for number, head in enumerate(_heads(comparison)):
        table.add_column(head, justify="right" if number else "left", no_wrap=True)
    for row in comparison.rows:
        table.add_row(*map(Text, _cells(comparison, row, lambda cell: f"{cell}*")))
    lines = as_text(table, width=160).rstrip().splitlines()
    notes = [*_notes(comparison), "* the best of the runs"]
    return "\n".join([*(line.rstrip() for line in lines), "", *notes]) + "\n"


def as_markdown(comparison: Comparison) -> str:
    """A table of GitHub's; the best is bold."""
    heads = _heads(comparison)
    rows = [_cells(comparison, row, lambda cell: f"**{cell}**") for row in comparison.rows]
    ruler = ["---", *["---:"] * (len(heads) - 1)]
    lines = [
        "| " + " | ".join(each.replace("|", "\\|") for each in row) + " |"
        for row in [heads, ruler, *rows]
    ]
    return "\n".join([*lines, "", *_notes(comparison)]) + "\n"


def as_latex(comparison: Comparison) -> str:
    """A ``tabular`` for the package booktabs; the best is bold."""
    heads = _heads(comparison)
    lines = [f"\\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}", "\\toprule"]
    lines += [_latex_row([_escaped(head) for head in heads]), "\\midrule"]
    for number, row in enumerate(comparison.rows):
        if row.published and not comparison.rows[number - 1].published:
            lines.append("\\midrule")
        cells = _cells(comparison, row, lambda cell: f"\\textbf{{{cell}}}")
        lines.append(_latex_row([_escaped(cells[0]), *cells[1:]]))
    lines += ["\\bottomrule", "\\end{tabular}"]
    return "\n".join([*lines, *(f"% {note}" for note in _notes(comparison))]) + "\n"


def as_csv(comparison: Comparison) -> str:
    """Numbers alone, in full; ``best`` names the columns in which the row is the best run."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    columns = [*comparison.types, "average"]
    ends = ["difference", "difference_low", "difference_high", "tasks", "published", "best"]
    writer.writerow(["model", *columns, *ends])
    for row in comparison.rows:
        values = [value_of(row, column) for column in columns]
        change = row.difference
        interval = [change.mean, change.low, change.high] if change else ["", "", ""]
        best = " ".join(column for column in columns if _is_best(comparison, row, column))
        tasks = "" if row.published else comparison.tasks
        numbers = ["" if value is None else value for value in values]
        writer.writerow([row.name, *numbers, *interval, tasks, row.published, best])
    return stream.getvalue()


FORMATS = {"text": as_plain, "csv": as_csv, "latex": as_latex, "markdown": as_markdown}


def format_comparison(comparison: Comparison, format: ComparisonFormat = "text") -> str:
    """Write a comparison as a table for the terminal, as CSV, LaTeX or Markdown."""
    return FORMATS[format](comparison)


def _heads(comparison: Comparison) -> list[str]:
    types = [_SHORT.get(type_, type_) for type_ in comparison.types]
    return ["model", *types, "average", f"difference [{100 * LEVEL:.0f} %]"]


def _cells(comparison: Comparison, row: Row, mark: Mark) -> list[str]:
    cells = [f"{row.name} (paper)" if row.published else row.name]
    for column in (*comparison.types, "average"):
        value = value_of(row, column)
        # The paper prints one decimal.
        shown = "-" if value is None else f"{value:.{1 if row.published else 2}f}"
        cells.append(mark(shown) if _is_best(comparison, row, column) else shown)
    change = row.difference
    cells.append(f"{change.mean:+.2f} [{change.low:+.2f}, {change.high:+.2f}]" if change else "-")
    return cells


def _is_best(comparison: Comparison, row: Row, column: str) -> bool:
    value = value_of(row, column)
    return not row.published and value is not None and value == comparison.best(column)


def _notes(comparison: Comparison) -> list[str]:
    first = (
        f"Scores times 100, over the {comparison.tasks} tasks that all runs have; the average is "
        f"over tasks. Differences are to {comparison.rows[0].name}, with {100 * LEVEL:.0f} % "
        f"intervals of {RESAMPLES:,} bootstrap resamples of the {comparison.tasks} tasks (seed "
        f"{SEED})."
    )
    left_out = f"Left out, since some run lacks them: {', '.join(comparison.left_out)}."
    others = [f"{note}." for note in comparison.notes]
    return [first, *([left_out] if comparison.left_out else []), *others]


def _latex_row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def _escaped(text: str) -> str:
    return "".join(f"\\{each}" if each in "&%$#_{}" else each for each in text)
