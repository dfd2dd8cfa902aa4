"""Reads batches ahead of time, in worker processes, while the model trains."""

import os
import pickle
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from embedkit.errors import UserError

BatchT = TypeVar("BatchT")


def stream(batches: Dataset[BatchT], numbers: range, workers: int) -> Iterator[BatchT]:
    """Yield the batches ``numbers``, in order, made ahead by ``workers`` processes.

    Raises:
        UserError: the batches hold objects of the user's script, which workers do not run.
    """
    loader = DataLoader(
        batches,
        batch_size=None,
        sampler=numbers,
        num_workers=workers,
        worker_init_fn=_leave_signals_to_the_parent,
        prefetch_factor=4 if workers else None,
        # Starting a DataLoader draws a number, which from the global generator would shift dropout.
        generator=torch.Generator().manual_seed(0),
    )
    try:
        with without_script():
            started = iter(loader)
    except (pickle.PicklingError, AttributeError) as error:
        raise UserError(
            f"data.workers = {workers}: a worker process cannot be sent the data, since it does "
            f"not run your script ({error}); move what this names into a module of its own, or "
            "set data.workers=0"
        ) from error
    yield from started


@contextmanager
def without_script() -> Iterator[None]:
    """Have processes that are started meanwhile leave the script of this process alone.

    Where processes are not forked, a new one imports the script that started it. A script without
    ``if __name__ == "__main__"`` would then begin its run a second time, in its own worker.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _leave_signals_to_the_parent(_worker: int) -> None:
    # Ctrl-C and a scheduler's SIGTERM reach the whole process group; the training process
    # still wants the batch of the step that it is to finish.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
