"""What an evaluation shows while it runs: its own bar, and not those of the libraries below."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import datasets
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn


def progress_bar(console: Console | None, total: int) -> Progress:
    """A bar with one task, of ``total`` steps, on standard error by default.

    Where that is no terminal nothing is drawn, and lines printed to its console come out at once.
    """
    console = console or Console(stderr=True)
    bar = Progress(
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
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
