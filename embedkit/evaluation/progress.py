"""Shows the progress of an evaluation, and silences the libraries that it calls."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import datasets
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn

from embedkit.distributed.progress import progress_bar


def progress_of(total: int, console: Console | None = None) -> Progress:
    """Return a bar of ``total`` steps, on standard error by default.

    A console that is no terminal shows no bar, only the lines that are printed to it.
    """
    console = console or Console(stderr=True)
    columns = (SpinnerColumn(), BarColumn(), MofNCompleteColumn(), "{task.description}")
    bar = progress_bar(*columns, console=console)
    bar.add_task("", total=total)
    return bar


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silence mteb and scikit-learn, and the progress bars of ``datasets``, while mteb runs."""
    logger, shown = logging.getLogger("mteb"), datasets.is_progress_bar_enabled()
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="mteb")
            # A label that is never predicted has no precision, which is no main score.
            warnings.filterwarnings("ignore", module=r"sklearn\.metrics")
            yield
    finally:
        logger.setLevel(level)
        if shown:
            datasets.enable_progress_bars()


def print_line(console: Console, line: str) -> None:
    """Print a line as it is: without markup, colours or breaks."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)
