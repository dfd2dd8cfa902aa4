"""Shows the progress of an evaluation, and silences the libraries that it calls."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn
from tqdm.std import tqdm

from embedkit.distributed.progress import progress_bar


def progress_of(total: int) -> Progress:
    """Return a bar of ``total`` steps on standard error.

    Without a terminal, no bar is shown, only the lines that are printed to its console.
    """
    bar = progress_bar(SpinnerColumn(), BarColumn(), MofNCompleteColumn(), "{task.description}")
    bar.add_task("", total=total)
    return bar


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silence mteb, scikit-learn and the progress bars of all libraries while mteb runs.

    ``datasets`` hashes the row numbers that are selected, catches a Ctrl-C while it does so, and
    warns that they cannot be hashed.
    """
    loggers = [logging.getLogger(name) for name in ("mteb", "datasets.fingerprint")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with _without_bars(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="mteb")
            # A label that is never predicted has no precision, which is no main score.
            warnings.filterwarnings("ignore", module=r"sklearn\.metrics")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _without_bars() -> Iterator[None]:
    """Hide all bars of tqdm: mteb has no other switch for some of its own."""
    initialize = tqdm.__init__

    def hidden(bar: tqdm, *args: Any, **options: Any) -> None:
        initialize(bar, *args, **{**options, "disable": True})

    tqdm.__init__ = hidden
    try:
        yield
    finally:
        tqdm.__init__ = initialize


def print_line(console: Console, line: str) -> None:
    """Print a line as it is: without markup, colours or breaks."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)
