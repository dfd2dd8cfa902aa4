"""Ranks: who I am, what the others hold. The only user of ``torch.distributed``."""

import atexit
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor

from embedkit.errors import UserError

ResultT = TypeVar("ResultT")

_BUCKET_ELEMENTS = 16 * 2**20
"""Gradients averaged in one collective: 64 MiB of fp32."""
PATIENCE = 5.0
"""Seconds that a rank which fails waits for another one to tell the reason."""
_FAILED = "embedkit/failed"
"""Key of the number of ranks that have failed."""


@contextmanager
def group(device: torch.device) -> Iterator[None]:
    """Join the group that torchrun describes; a process leaves it as it ends.

    Does nothing in a single process, or where a group has been joined already, by the caller or
    here: torchrun's ranks meet once.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        # Rank 0 may evaluate for a long time while the others wait at the next collective.
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(hours=6))
        atexit.register(_leave)
    try:
        yield
    except BaseException:
        # Leaving waits for the other ranks, which may wait for this one inside a collective: its
        # end is what tells torchrun to end them.
        atexit.unregister(_leave)
        raise


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def is_main() -> bool:
    """Whether this process prints and writes."""
    return rank() == 0


def local_device() -> torch.device:
    """The CUDA device of this process's place on its machine, or the CPU."""
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")


def share_of(count: int, rank: int, world_size: int) -> slice:
    """A rank's part of ``count`` things: contiguous, and equal to within one over the ranks."""
    return slice(count * rank // world_size, count * (rank + 1) // world_size)


def barrier() -> None:
    if world_size() > 1:
        dist.barrier()


def on_main(work: Callable[[], ResultT]) -> ResultT:
    """What ``work`` gives on rank 0, on every rank; a mistake found there is raised on all."""
    if world_size() == 1:
        return work()
    box: list[Any] = [None]
    if is_main():
        try:
            box = [work()]
        except UserError as error:
            box = [error]
    dist.broadcast_object_list(box, src=0)
    if isinstance(box[0], UserError):
        raise box[0]
    result: ResultT = box[0]
    return result


def fails_first() -> bool:
    """Note that this rank fails, and return whether no other one has failed before it.

    A rank that fails leaves the others in a collective that cannot end: their errors follow from
    its end and tell nothing. Ranks that torchrun has not started know nothing of each other here.
    """
    store = _launcher_store()
    return store is None or store.add(_FAILED, 1) == 1


def is_first_to_tell(mistake: str) -> bool:
    """Return whether this rank is the one that prints a mistake, which others may find too.

    Rank 0 is asked first: another rank waits a moment for it. A group need not be joined yet.
    """
    store = _launcher_store()
    if store is None:
        return True
    store.add(_FAILED, 1)
    told = f"embedkit/{hashlib.sha256(mistake.encode()).hexdigest()}"
    until = time.monotonic() + (PATIENCE if os.environ["RANK"] != "0" else 0)
    # Asked again and again, since a wait that runs out prints a warning of torch's.
    while time.monotonic() < until and not store.check([told]):
        time.sleep(0.1)
    return store.add(told, 1) == 1


def _launcher_store() -> Store | None:
    """Connect to the store that torchrun keeps for its ranks; it outlives each of them.

    Ranks that torchrun starts anew after a failure find it empty.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    store, _, _ = next(rendezvous("env://"))
    return store


def any_rank(flag: bool, device: torch.device) -> bool:
    """Whether ``flag`` is true on some rank."""
    if world_size() == 1:
        return flag
    box = torch.tensor([int(flag)], device=device)
    dist.all_reduce(box, op=dist.ReduceOp.MAX)
    return bool(box.item())


def sum_over_ranks(values: Tensor) -> Tensor:
    """The sum of every rank's ``values``, without a gradient."""
    if world_size() == 1:
        return values
    total = values.detach().clone()
    dist.all_reduce(total)
    return total


def max_over_ranks(value: int, device: torch.device) -> int:
    """The largest of every rank's ``value``."""
    if world_size() == 1:
        return value
    box = torch.tensor([value], device=device)
    dist.all_reduce(box, op=dist.ReduceOp.MAX)
    return int(box.item())


def gather(rows: Tensor) -> tuple[Tensor, int]:
    """Every rank's rows, in rank order, and where this rank's begin.

    The gradient of a row is the sum of what all ranks asked of it. Ranks may hold different
    numbers of rows.

    Shapes: ``rows`` ``(n, ...)`` on each rank; the result ``(sum of n, ...)``.
    """
    if world_size() == 1:
        return rows, 0
    counts = _counts(rows)
    gathered: Tensor = _Gather.apply(rows, counts)
    return gathered, sum(counts[: rank()])


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace every gradient by its mean over the ranks; those of a sharded model are it."""
    if world_size() == 1:
        return
    bucket: list[Tensor] = []
    size = 0
    for parameter in parameters:
        if parameter.grad is None or isinstance(parameter.grad, DTensor):
            continue
        bucket.append(parameter.grad)
        size += parameter.grad.numel()
        if size >= _BUCKET_ELEMENTS:
            _average(bucket)
            bucket, size = [], 0
    if bucket:
        _average(bucket)


def _average(gradients: list[Tensor]) -> None:
    flat = torch.cat([each.reshape(-1) for each in gradients])
    dist.all_reduce(flat)
    flat /= world_size()
    parts = flat.split([each.numel() for each in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def _counts(rows: Tensor) -> list[int]:
    mine = torch.tensor([len(rows)], device=rows.device)
    counts = [torch.zeros_like(mine) for _ in range(world_size())]
    dist.all_gather(counts, mine)
    return [int(count) for count in counts]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: list[int]) -> Tensor:
        ctx.counts = counts
        # Collectives want equal shapes: pad to the largest share and cut again.
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        # A copy: the gradient may be shared with other terms of a sum.
        total = grads[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        begin = sum(ctx.counts[: rank()])
        return total[begin : begin + ctx.counts[rank()]], None
