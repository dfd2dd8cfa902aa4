"""What an evaluation shows while it runs: its own bar, and not those of the libraries below."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import datasets
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn

from embedkit.distributed.progress import progress_bar


def progress_of(console: Console | None, total: int) -> Progress:
    """Return a bar with one task, of ``total`` steps, on standard error by default.

    Where that is no terminal nothing is drawn, and lines printed to its console come out at once.
    """
    console = console or Console(stderr=True)
    columns = (SpinnerColumn(), BarColumn(), MofNCompleteColumn(), "{task.description}")
    bar = progress_bar(*columns, console=console, shown=console.is_terminal)
    bar.add_task("", total=total)
    return bar


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silence remarks of mteb and scikit-learn, and the bars of data sets, while mteb runs."""
    logger, shown = logging.getLogger("mteb"), datasets.is_progress_bar_enabled()
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="mteb")
            # Of precision where a label is never guessed, which is no main score.
            warnings.filterwarnings("ignore", module=r"sklearn\.metrics")
            yield
    finally:
        logger.setLevel(level)
        if shown:
            datasets.enable_progress_bars()
