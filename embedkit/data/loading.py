"""Reads batches ahead of time, in worker processes, while the model trains."""

import os
import signal
from collections.abc import Iterator
from typing import TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

BatchT = TypeVar("BatchT")


def stream(batches: Dataset[BatchT], numbers: range, workers: int) -> Iterator[BatchT]:
    """Yield the batches ``numbers``, in order, made ahead by ``workers`` processes."""
    yield from DataLoader(
        batches,
        batch_size=None,
        sampler=numbers,
        num_workers=workers,
        worker_init_fn=_leave_signals_to_the_parent,
        prefetch_factor=4 if workers else None,
        # Starting a DataLoader draws a number, which from the global generator would shift dropout.
        generator=torch.Generator().manual_seed(0),
    )


def _leave_signals_to_the_parent(_worker: int) -> None:
    # Ctrl-C and a scheduler's SIGTERM reach the whole process group; the training process
    # still wants the batch of the step that it is to finish.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
