"""Ranks on one CPU: a gloo group of forked processes, up in a moment."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.multiprocessing.spawn import start_processes

_PATIENCE = timedelta(seconds=120)
"""How long a rank waits for another that has died."""


def run_on_ranks(world_size: int, body: Callable[..., object], *args: object) -> None:
    """Call ``body(*args)`` on every rank of a fresh gloo group.

    A failure on any rank fails the test. Ranks are forked, which starts them in no time and lets
    ``body`` be any function, but autograd refuses to work in a fork where it sees a GPU.
    """
    if torch.cuda.device_count():
        pytest.skip("forked ranks and GPUs exclude each other: set CUDA_VISIBLE_DEVICES=")
    with tempfile.TemporaryDirectory() as folder:
        start_processes(
            _join,
            (world_size, f"file://{folder}/rendezvous", body, args),
            nprocs=world_size,
            start_method="fork",
        )


@contextmanager
def launcher_store() -> Iterator[None]:
    """Keep a store as torchrun's agent does, for ranks that are started meanwhile."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASTER_ADDR", "127.0.0.1")
        patch.setenv("MASTER_PORT", str(store.port))
        patch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
        yield


def _join(
    rank: int,
    world_size: int,
    rendezvous: str,
    body: Callable[..., None],
    args: tuple[object, ...],
) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=world_size, timeout=_PATIENCE
    )
    try:
        body(*args)
    finally:
        dist.destroy_process_group()
