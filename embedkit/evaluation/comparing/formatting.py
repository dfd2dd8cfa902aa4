"""Writes a comparison as tables for the terminal, as CSV, LaTeX or Markdown."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rich import box
from rich.table import Column, Table
from rich.text import Text

from embedkit.evaluation.comparing.by_task import Contest
from embedkit.evaluation.comparing.comparison import Comparison, Row
from embedkit.evaluation.comparing.statistics import FEWEST, LEVEL, RESAMPLES, SEED
from embedkit.evaluation.settings import ComparisonFormat
from embedkit.evaluation.tables import as_csv, as_text

_SHORT = {
    "Classification": "Class.",
    "Clustering": "Clust.",
    "PairClassification": "PairClass.",
    "Reranking": "Rerank.",
    "Retrieval": "Retr.",
    "Summarization": "Summ.",
}
"""Column heads of the paper, which fit on a page."""
_PERCENT = f"{100 * LEVEL:.0f} %"
_BOUNDS = ("difference", "difference_low", "difference_high")


@dataclass(frozen=True, slots=True)
class _Sheet:
    """Cells of a table; columns of words stand on the left, numbers on the right."""

    heads: list[str]
    rows: list[list[str]]
    words: int = 1
    """Number of columns that hold words."""
    sections: tuple[int, ...] = (0,)
    """Numbers of the rows above which LaTeX has a rule."""
    title: str = ""


def format_comparison(comparison: Comparison, format: ComparisonFormat = "text") -> str:
    """Write a comparison as tables for the terminal, as CSV, LaTeX or Markdown.

    In tables for the terminal an asterisk marks the best run; in GitHub's Markdown, and in LaTeX
    with the package booktabs, it is bold. CSV has unrounded numbers in one table: of the tasks if
    they were asked for, else of the means.
    """
    notes = _notes(comparison)
    match format:
        case "text":
            return _pages(comparison, "{}*", _plain, [*notes, "* the best of the runs"])
        case "markdown":
            return _pages(comparison, "**{}**", _markdown, notes)
        case "latex":
            return _pages(comparison, r"\textbf{{{}}}", _latex, [f"% {note}" for note in notes])
        case "csv":
            return _tasks_csv(comparison) if comparison.contests else _means_csv(comparison)


def _pages(
    comparison: Comparison, best: str, table: Callable[[_Sheet], str], notes: Iterable[str]
) -> str:
    sheets = [_means(comparison, best), *map(_tasks, comparison.contests)]
    return "\n\n".join([*map(table, sheets), "\n".join(notes)]) + "\n"


def _plain(sheet: _Sheet) -> str:
    columns = [
        # A plain string could be read as markup: names of groups may have brackets.
        Column(Text(head), justify="left" if number < sheet.words else "right", no_wrap=True)
        for number, head in enumerate(sheet.heads)
    ]
    table = Table(*columns, box=box.SIMPLE_HEAD)
    for cells in sheet.rows:
        table.add_row(*map(Text, cells))
    lines = [line.rstrip() for line in as_text(table, width=160).rstrip().splitlines()]
    return "\n".join([sheet.title, *lines] if sheet.title else lines)


def _markdown(sheet: _Sheet) -> str:
    ruler = ["---" if number < sheet.words else "---:" for number in range(len(sheet.heads))]
    table = [sheet.heads, ruler, *sheet.rows]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]
    return "\n".join([sheet.title, "", *lines] if sheet.title else lines)


def _latex(sheet: _Sheet) -> str:
    special = str.maketrans({char: f"\\{char}" for char in "&%$#_{}"})
    numbers = len(sheet.heads) - sheet.words
    lines = [f"% {sheet.title}"] if sheet.title else []
    lines += [f"\\begin{{tabular}}{{{'l' * sheet.words}{'r' * numbers}}}", r"\toprule"]
    lines.append(" & ".join(head.translate(special) for head in sheet.heads) + r" \\")
    for number, cells in enumerate(sheet.rows):
        if number in sheet.sections:
            lines.append(r"\midrule")
        words = [cell.translate(special) for cell in cells[: sheet.words]]
        # Numbers may hold the command that marks the best.
        shown = [*words, *(cell.replace("±", r"$\pm$") for cell in cells[sheet.words :])]
        lines.append(" & ".join(shown) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _means(comparison: Comparison, best: str) -> _Sheet:
    """Return the table of means, with the best values in the format ``best``."""
    types = [_SHORT.get(type_, type_) for type_ in comparison.types]
    rows = []
    for row in comparison.rows:
        cells = [f"{row.name} (paper)" if row.published else row.name]
        decimals = 1 if row.published else 2  # The paper prints one decimal.
        for column in comparison.columns:
            value = row.means.get(column)
            shown = "-" if value is None else f"{value:.{decimals}f}"
            cells.append(best.format(shown) if _is_best(comparison, row, column) else shown)
        if row.spread is not None:
            cells[-1] += f" ± {row.spread:.2f}"
        rows.append([*cells, str(row.difference) if row.difference else "-"])
    heads = ["model", *types, "average", f"difference [{_PERCENT}]"]
    # A rule stands above the runs, and another one above the published rows.
    runs = sum(not row.published for row in comparison.rows)
    return _Sheet(heads, rows, sections=(0, runs))


def _tasks(contest: Contest) -> _Sheet:
    """Return the table of a contest, task by task."""
    heads = ["task", "metric", contest.first, contest.second, "difference"]
    rows = []
    for task in contest.tasks:
        cells = [task.task, task.metric, f"{task.first:.2f}", f"{task.second:.2f}"]
        difference, queries = f"{task.difference:+.2f}", str(task.queries or "-")
        rows.append([*cells, difference, task.interval, queries])
    wins = f"{contest.wins} win{'s' * (contest.wins != 1)}"
    ties = f"{contest.ties} tie{'s' * (contest.ties != 1)}"
    losses = f"{contest.losses} loss{'es' * (contest.losses != 1)}"
    title = f"{contest.second} against {contest.first}: {wins}, {ties}, {losses}"
    return _Sheet([*heads, f"{_PERCENT} over queries", "queries"], rows, words=2, title=title)


def _means_csv(comparison: Comparison) -> str:
    """Return the means; ``best`` names the columns in which the row is the best run."""
    columns, rows = comparison.columns, []
    for row in comparison.rows:
        bounds = row.difference or (None, None, None)
        tasks = None if row.published else comparison.tasks
        best = " ".join(column for column in columns if _is_best(comparison, row, column))
        values = map(row.means.get, columns)
        rows.append([row.name, *values, row.spread, *bounds, tasks, row.published, best])
    heads = ["model", *columns, "spread", *_BOUNDS, "tasks", "published", "best"]
    return as_csv(heads, rows)


def _tasks_csv(comparison: Comparison) -> str:
    rows = []
    for contest in comparison.contests:
        for task in contest.tasks:
            facts = [task.task, task.type, task.metric, task.first, task.second, task.difference]
            bounds = task.over_queries[1:] if task.over_queries else (None, None)
            rows.append([contest.first, contest.second, *facts, *bounds, task.queries])
    heads = ["first", "second", "task", "type", "metric", "first_score", "second_score"]
    return as_csv([*heads, *_BOUNDS, "queries"], rows)


def _is_best(comparison: Comparison, row: Row, column: str) -> bool:
    known = column in row.means and not row.published
    return known and row.means[column] == comparison.best(column)


def _notes(comparison: Comparison) -> list[str]:
    tasks = comparison.tasks
    notes = [
        f"Scores times 100, over the {tasks} tasks that all runs have; the average is over tasks. "
        f"Differences are to {comparison.rows[0].name}{_intervals(comparison)}."
    ]
    if any(row.spread is not None for row in comparison.rows):
        notes.append(
            "A group's scores are means over its runs, and ± is the standard deviation of the "
            "average over them."
        )
    if comparison.contests:
        notes.append(
            f"The {_PERCENT} over queries are Student's t of paired differences; they say how much "
            "a task's difference depends on its queries. Differences that print as 0.00 are ties."
        )
    without = dict.fromkeys(task for one in comparison.contests for task in one.without_queries)
    if without:
        notes.append(f"Some run has no results of the same single queries: {', '.join(without)}.")
    if comparison.left_out:
        notes.append(f"Left out, since some run lacks them: {', '.join(comparison.left_out)}.")
    return [*notes, *(f"{note}." for note in comparison.notes)]


def _intervals(comparison: Comparison) -> str:
    """Return the part of a sentence that says how the intervals of the differences are made."""
    if len([row for row in comparison.rows if not row.published]) < 2:
        return ""
    if comparison.tasks < FEWEST:
        return f", without intervals: fewer than {FEWEST} tasks are too few for them"
    methods = [f"{_PERCENT} intervals of Student's t over the {comparison.tasks} tasks"]
    if any(row.spread is not None for row in comparison.rows):
        methods.append(
            f"where a group takes part, of {RESAMPLES:,} studentized bootstrap resamples of runs "
            f"and tasks (seed {SEED})"
        )
    return f", with {' or, '.join(methods)}"
