"""Batches ahead of time: worker processes that read while the model trains."""

import os
import signal
from collections.abc import Iterator
from typing import TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

BatchT = TypeVar("BatchT")


def stream(batches: Dataset[BatchT], numbers: range, workers: int) -> Iterator[BatchT]:
    """The batches ``numbers``, in order, made ahead by ``workers`` processes."""
    # Starting a DataLoader draws a number; taken from the global generator, it would shift
    # dropout.
    own_rng = torch.Generator().manual_seed(0)
    loader = DataLoader(
        batches,
        batch_size=None,
        sampler=numbers,
        num_workers=workers,
        worker_init_fn=_leave_signals_to_the_parent,
        prefetch_factor=4 if workers else None,
        generator=own_rng,
    )
    yield from loader


def _leave_signals_to_the_parent(_worker: int) -> None:
    # Ctrl-C and a scheduler's SIGTERM reach the whole process group; the training process
    # still wants the batch of the step that it is to finish.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
