"""Progress of long work, shown by rank 0 alone: a bar on a terminal, or lines of text."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import progress
from rich.console import Console, ConsoleRenderable

from embedkit.distributed.ranks import is_main

_LINES = 10
"""Number of lines that are printed where there is no terminal to draw a bar on."""


def progress_bar(*columns: str | progress.ProgressColumn) -> progress.Progress:
    """Return a bar of such columns on standard error, which vanishes when it ends.

    A string is a column in the format of rich, such as ``{task.description}``, without markup.
    Without a terminal, no bar is drawn.
    """
    parts = [
        progress.TextColumn(column, markup=False) if isinstance(column, str) else column
        for column in columns
    ]
    console = Console(stderr=True)
    hidden = not (console.is_terminal and is_main())
    return progress.Progress(*parts, console=console, transient=True, disable=hidden)


@contextmanager
def track_progress(work: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Show how much of ``total`` is done, and yield a function that is told how much more is.

    Without a terminal, a line is printed to standard error after each tenth of the work.
    """
    say(f"{work}: {total:,}" + (f", of which {done:,} are done" if done else ""))
    columns = (progress.BarColumn(), progress.MofNCompleteColumn(), progress.TimeRemainingColumn())
    with progress_bar(*columns, "{task.description}") as bar:
        task = bar.add_task(work, total=total, completed=done)

        def advance(more: int) -> None:
            nonlocal done
            before, done = done * _LINES // total, done + more
            bar.advance(task, more)
            if not bar.console.is_terminal and done * _LINES // total > before:
                say(f"{work}: {done / total:.0%}")

        yield advance


def say(line: str) -> None:
    """Print a line as it is to standard error, on rank 0 alone."""
    if is_main():
        Console(stderr=True).print(line, highlight=False, markup=False, soft_wrap=True)


def show(content: ConsoleRenderable | str) -> None:
    """Print a table, or a line as it is, to standard output, on rank 0 alone."""
    if is_main():
        Console(highlight=False, markup=False).print(content, soft_wrap=isinstance(content, str))
