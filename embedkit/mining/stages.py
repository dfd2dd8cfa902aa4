"""What mining shows while it runs, on standard error: a bar on a terminal, else lines."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

from embedkit.distributed.progress import progress_bar

_LINES = 10


@contextmanager
def stage(
    console: Console, work: str, total: int, done: int = 0
) -> Iterator[Callable[[int], None]]:
    """Show ``work`` as it goes on from ``done``; yields what is told how much more is done."""

    def say(remark: str) -> None:
        console.print(f"{work}: {remark}", highlight=False, markup=False, soft_wrap=True)

    say(f"{total:,}" + (f", of which {done:,} are done" if done else ""))
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), "{task.description}")
    shown = console.is_terminal
    with progress_bar(*columns, console=console, shown=shown) as bar:
        task = bar.add_task(work, total=total, completed=done)

        def advance(more: int) -> None:
            nonlocal done
            before, done = done * _LINES // total, done + more
            bar.advance(task, more)
            if not shown and done * _LINES // total > before:
                say(f"{done / total:.0%}")

        yield advance
