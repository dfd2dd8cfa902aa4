"""Compares evaluations, with each other and with published results, like the paper's Table 4."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
from rich import box
from rich.table import Column, Table
from rich.text import Text

from embedkit import rng
from embedkit.config import read_toml
from embedkit.errors import UserError
from embedkit.evaluation.settings import ComparisonFormat
from embedkit.evaluation.summary import TYPES, Summary, as_text

RESAMPLES = 10_000
LEVEL = 0.95
SEED = 0
"""Random seed of the bootstrap, which draws ``RESAMPLES`` for an interval of ``LEVEL``."""

_SHORT = {
    "Classification": "Class.",
    "Clustering": "Clust.",
    "PairClassification": "PairClass.",
    "Reranking": "Rerank.",
    "Retrieval": "Retr.",
    "Summarization": "Summ.",
}
"""Column heads of the paper, which fit on a page."""


class Difference(NamedTuple):
    """Difference of two means over the same tasks, with its bootstrap interval over tasks."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Row:
    """A model's means times 100."""

    name: str
    types: Mapping[str, float]
    average: float
    """Mean over tasks, as in the paper."""
    difference: Difference | None = None
    """Difference to the first row; ``None`` for the first row and published ones."""
    published: bool = False

    @property
    def means(self) -> Mapping[str, float]:
        """The mean of each type, and that of all tasks as ``average``."""
        return {**self.types, "average": self.average}


@dataclass(frozen=True, slots=True)
class Comparison:
    rows: tuple[Row, ...]
    types: tuple[str, ...]
    """Columns: the seven types of MTEB(eng, v1), and others that were measured."""
    tasks: int
    """Number of tasks that have a score in every run."""
    left_out: tuple[str, ...] = ()
    """Tasks that have a score in some runs only."""
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Keys of ``Row.means`` in the order of a table's columns."""
        return (*self.types, "average")

    def best(self, column: str) -> float | None:
        """Return the highest mean of the runs, without published rows, whose tasks may differ."""
        runs = [row.means for row in self.rows if not row.published]
        return max((means[column] for means in runs if column in means), default=None)


def read_run(folder: Path) -> tuple[str, Summary]:
    """Return name and summary of a run of ``finetune`` or of an output folder of ``eval-mteb``.

    Raises:
        UserError: the folder holds no evaluation.
    """
    whole, within = folder.resolve(), folder.resolve().parent
    # An evaluation within a run is named after both.
    evaluation = f"{within.parent.name} {whole.name}" if within.name == "eval" else whole.name
    for name, path in ((evaluation, folder), (whole.name, folder / "eval" / "after")):
        summary = path / "summary.json"
        if summary.is_file():
            try:
                return name, Summary.read(summary)
            except ValueError:
                raise UserError(f"{summary}: is no summary of an evaluation") from None
    raise UserError(
        f"{folder}: holds neither summary.json nor eval/after/summary.json: evaluate it with "
        "embedkit eval-mteb, or give its recipe an [evaluation]"
    )


def compare(runs: Sequence[str | Path], *, paper: bool = False) -> Comparison:
    """Compare evaluations over the tasks that all of them have scored.

    Args:
        runs: folders of ``finetune``, or outputs of ``evaluate``. Differences are to the first.
        paper: add the published rows of Table 4.

    Raises:
        UserError: a folder holds no evaluation, no task has a score in all of them, or two runs
            have one name.
    """
    return compare_summaries([read_run(Path(run)) for run in runs], paper=paper)


def compare_summaries(runs: Sequence[tuple[str, Summary]], *, paper: bool = False) -> Comparison:
    """Compare named summaries, as ``compare`` does folders."""
    names = [name for name, _ in runs]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"two runs are called {', '.join(repeated)}: rename one's folder")
    first = runs[0][1]
    scored = [set(summary.scores) for _, summary in runs]
    shared = [task for task in first.scores if all(task in tasks for tasks in scored)]
    if not shared:
        raise UserError(f"{', '.join(names)}: no task has a score in all of them")
    rows = [
        _row(name, summary, shared, None if number == 0 else first)
        for number, (name, summary) in enumerate(runs)
    ]
    published, notes = _published(len(shared)) if paper else ([], [])
    mismatches = [
        f"{task}: the runs differ in its {what}"
        for task in shared
        for what in ("revision", "metric", "splits")
        if len({getattr(summary.scores[task], what) for _, summary in runs}) > 1
    ]
    measured = {first.scores[task].type for task in shared}
    return Comparison(
        rows=(*rows, *published),
        types=(*TYPES, *sorted(measured - set(TYPES))),
        tasks=len(shared),
        left_out=tuple(sorted(set().union(*scored) - set(shared))),
        notes=(*mismatches, *notes),
    )


def interval(differences: Sequence[float], seed: int = SEED) -> Difference:
    """Return the mean of paired differences, with the percentiles of its bootstrap over tasks."""
    values = np.asarray(differences, dtype=np.float64)
    draws = np.random.default_rng(rng.fold_in(seed, "compare"))
    chosen = draws.integers(0, len(values), size=(RESAMPLES, len(values)))
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(values[chosen].mean(axis=1), [tail, 1 - tail])
    return Difference(float(values.mean()), float(low), float(high))


def _row(name: str, summary: Summary, tasks: Sequence[str], first: Summary | None) -> Row:
    scores = {task: 100 * summary.scores[task].score for task in tasks}
    by_type: dict[str, list[float]] = {}
    for task, score in scores.items():
        by_type.setdefault(summary.scores[task].type, []).append(score)
    types = {type_: fmean(values) for type_, values in by_type.items()}
    difference = None
    if first is not None:
        difference = interval([scores[task] - 100 * first.scores[task].score for task in tasks])
    return Row(name, types, fmean(scores.values()), difference)


def _published(tasks: int) -> tuple[list[Row], list[str]]:
    table = read_toml(Path(__file__).with_name("paper_table4.toml"))
    rows = [Row(**row, published=True) for row in table["row"]]
    note = "Rows of the paper (Table 4) are over the 56 tasks of MTEB(eng, v1)"
    return rows, [note if tasks == table["tasks"] else f"{note}, the others over {tasks} tasks"]


def format_comparison(comparison: Comparison, format: ComparisonFormat = "text") -> str:
    """Write a comparison as a table for the terminal, as CSV, LaTeX or Markdown."""
    return FORMATS[format](comparison)


def as_plain(comparison: Comparison) -> str:
    """Return a table for a terminal, in which an asterisk marks the best run."""
    (name, *heads), *rows = _cells(comparison, "{}*")
    columns = [Column(head, justify="right", no_wrap=True) for head in heads]
    table = Table(Column(name, no_wrap=True), *columns, box=box.SIMPLE_HEAD)
    for cells in rows:
        table.add_row(*map(Text, cells))
    lines = [line.rstrip() for line in as_text(table, width=160).rstrip().splitlines()]
    return "\n".join([*lines, "", *_notes(comparison), "* the best of the runs"]) + "\n"


def as_markdown(comparison: Comparison) -> str:
    """Return a table in GitHub's Markdown, in which the best run is bold."""
    heads, *rows = _cells(comparison, "**{}**")
    table = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]
    return "\n".join([*lines, "", *_notes(comparison)]) + "\n"


def as_latex(comparison: Comparison) -> str:
    """Return a ``tabular`` for the package booktabs, in which the best run is bold."""
    special = str.maketrans({char: f"\\{char}" for char in "&%$#_{}"})
    heads, *rows = _cells(comparison, r"\textbf{{{}}}")
    lines = [f"\\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}", r"\toprule"]
    lines.append(" & ".join(head.translate(special) for head in heads) + r" \\")
    published = None
    for row, (name, *cells) in zip(comparison.rows, rows, strict=True):
        # A rule stands above the runs, and another one above the published rows.
        if row.published is not published:
            lines.append(r"\midrule")
            published = row.published
        lines.append(" & ".join([name.translate(special), *cells]) + r" \\")
    notes = [f"% {note}" for note in _notes(comparison)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *notes]) + "\n"


def as_csv(comparison: Comparison) -> str:
    """Return unrounded numbers; ``best`` names the columns in which the row is the best run."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    columns = comparison.columns
    ends = ["difference", "difference_low", "difference_high", "tasks", "published", "best"]
    writer.writerow(["model", *columns, *ends])
    for row in comparison.rows:
        bounds = row.difference or (None, None, None)
        tasks = None if row.published else comparison.tasks
        best = " ".join(column for column in columns if _is_best(comparison, row, column))
        values = map(row.means.get, columns)
        writer.writerow([row.name, *values, *bounds, tasks, row.published, best])
    return stream.getvalue()


FORMATS = {"text": as_plain, "csv": as_csv, "latex": as_latex, "markdown": as_markdown}


def _cells(comparison: Comparison, best: str) -> list[list[str]]:
    """Return the heads and the rows of a table, with the best values in the format ``best``."""
    types = [_SHORT.get(type_, type_) for type_ in comparison.types]
    table = [["model", *types, "average", f"difference [{100 * LEVEL:.0f} %]"]]
    for row in comparison.rows:
        cells = [f"{row.name} (paper)" if row.published else row.name]
        decimals = 1 if row.published else 2  # The paper prints one decimal.
        for column in comparison.columns:
            value = row.means.get(column)
            shown = "-" if value is None else f"{value:.{decimals}f}"
            cells.append(best.format(shown) if _is_best(comparison, row, column) else shown)
        change = row.difference
        cells.append("{:+.2f} [{:+.2f}, {:+.2f}]".format(*change) if change else "-")
        table.append(cells)
    return table


def _is_best(comparison: Comparison, row: Row, column: str) -> bool:
    known = column in row.means and not row.published
    return known and row.means[column] == comparison.best(column)


def _notes(comparison: Comparison) -> list[str]:
    notes = [
        f"Scores times 100, over the {comparison.tasks} tasks that all runs have; the average is "
        f"over tasks. Differences are to {comparison.rows[0].name}, with {100 * LEVEL:.0f} % "
        f"intervals of {RESAMPLES:,} bootstrap resamples of the {comparison.tasks} tasks (seed "
        f"{SEED})."
    ]
    if comparison.left_out:
        notes.append(f"Left out, since some run lacks them: {', '.join(comparison.left_out)}.")
    return [*notes, *(f"{note}." for note in comparison.notes)]
