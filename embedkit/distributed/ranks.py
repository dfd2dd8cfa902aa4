"""Process groups and collectives: this process's rank, and exchange of values with other ranks."""

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
"""Number of gradient elements averaged in one collective: 64 MiB of fp32."""
PATIENCE = 5.0
"""Seconds for which a failing rank waits for another rank to report the cause."""
_FAILED = "embedkit/failed"
"""Key, in torchrun's store, of the number of ranks that have failed."""


@contextmanager
def group(device: torch.device) -> Iterator[None]:
    """Join the process group that torchrun describes, if there is one and none is joined yet.

    The process leaves the group when it exits, since torchrun's ranks can rendezvous only once.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        # Rank 0 may evaluate for hours while the others wait at the next collective.
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(hours=6))
        atexit.register(_leave)
    try:
        yield
    except BaseException:
        # Leaving the group waits for the other ranks, which may wait for this one in a collective;
        # torchrun ends them once this process has exited.
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
    """Return whether this process is rank 0, which prints and writes files."""
    return rank() == 0


def local_device() -> torch.device:
    """Return the CUDA device of this process's local rank, made the current one, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def share_of(count: int, rank: int, world_size: int) -> slice:
    """Return a rank's contiguous part of ``count`` items; sizes of parts differ by at most one."""
    return slice(count * rank // world_size, count * (rank + 1) // world_size)


def barrier() -> None:
    if world_size() > 1:
        dist.barrier()


def on_main(work: Callable[[], ResultT]) -> ResultT:
    """Run ``work`` on rank 0 and return its result on every rank; a UserError is raised on all."""
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
    return box[0]


def fails_first() -> bool:
    """Record that this rank fails, and return whether it is the first rank to do so.

    A rank that fails leaves the others in a collective that cannot end: their errors follow from
    its exit and are not worth printing. Without torchrun's store every rank is the first.
    """
    store = _launcher_store()
    return store is None or store.add(_FAILED, 1) == 1


def reports_first(mistake: str) -> bool:
    """Record that this rank fails by ``mistake``, and return whether it should print the mistake.

    Exactly one of the ranks that make a mistake prints it, preferably rank 0, for which the others
    wait ``PATIENCE`` seconds. A group need not be joined yet.
    """
    store = _launcher_store()
    if store is None:
        return True
    store.add(_FAILED, 1)
    key = _key_of(mistake)
    until = time.monotonic() + (PATIENCE if os.environ["RANK"] != "0" else 0)
    # Polled, since ``store.wait`` prints a warning of torch when it times out.
    while time.monotonic() < until and not store.check([key]):
        time.sleep(0.1)
    return store.add(key, 1) == 1


def says_first(remark: str) -> bool:
    """Record that this rank has a ``remark``, and return whether no other rank had it before."""
    store = _launcher_store()
    return store is None or store.add(_key_of(remark), 1) == 1


def _key_of(text: str) -> str:
    return f"embedkit/{hashlib.sha256(text.encode()).hexdigest()}"


def _launcher_store() -> Store | None:
    """Connect to the key-value store of torchrun, which outlives every rank, if there is one."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    store, _, _ = next(rendezvous("env://"))
    return store


def any_rank(flag: bool, device: torch.device) -> bool:
    """Return whether ``flag`` is true on any rank."""
    return bool(max_over_ranks(int(flag), device))


def sum_over_ranks(values: Tensor) -> Tensor:
    """Return the sum of ``values`` over all ranks, without a gradient."""
    if world_size() == 1:
        return values
    # A copy is reduced: the values are the caller's, or a gradient that autograd shares.
    total = values.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


def max_over_ranks(value: int, device: torch.device) -> int:
    """Return the maximum of ``value`` over all ranks."""
    if world_size() == 1:
        return value
    box = torch.tensor([value], device=device)
    dist.all_reduce(box, op=dist.ReduceOp.MAX)
    return int(box.item())


def gather(rows: Tensor) -> tuple[Tensor, int]:
    """Return the rows of all ranks, in rank order, and the index of this rank's first row.

    The gradient of a row is the sum of its gradients on all ranks. Ranks may hold different
    numbers of rows.

    Shapes: ``rows`` ``(n, ...)`` on each rank; the result ``(sum of n, ...)``.
    """
    if world_size() == 1:
        return rows, 0
    counts = torch.zeros(world_size(), dtype=torch.int64, device=rows.device)
    counts[rank()] = len(rows)
    lengths: list[int] = sum_over_ranks(counts).tolist()
    return _Gather.apply(rows, lengths), sum(lengths[: rank()])


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, lengths: list[int]) -> Tensor:
        ctx.lengths = lengths
        # ``all_gather`` requires equal shapes: rows are padded to the longest part, then unpadded.
        padded = rows.new_zeros(max(lengths), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(parts, padded)
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return sum_over_ranks(grads[0]).split(ctx.lengths)[rank()], None


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace every gradient by its mean over the ranks.

    FSDP gradients are averaged already and are skipped.
    """
    if world_size() == 1:
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    bucket: list[Tensor] = []
    for number, gradient in enumerate(gradients, start=1):
        if not isinstance(gradient, DTensor):
            bucket.append(gradient)
        sizes = [waiting.numel() for waiting in bucket]
        if bucket and (sum(sizes) >= _BUCKET_ELEMENTS or number == len(gradients)):
            flat = torch.cat([waiting.reshape(-1) for waiting in bucket])
            dist.all_reduce(flat)
            flat /= world_size()
            for waiting, mean in zip(bucket, flat.split(sizes), strict=True):
                waiting.copy_(mean.view_as(waiting))
            bucket = []
