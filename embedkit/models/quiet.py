"""Silencing of transformers, whose progress bars and reports would mix with embedkit's."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def quietly() -> Iterator[None]:
    """Disable progress bars and loading reports of transformers; embedkit reports errors itself."""
    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()
