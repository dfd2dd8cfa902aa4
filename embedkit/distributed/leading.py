"""Work that rank 0 leads: the other ranks wait, and take their share in what it asks for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event
from typing import Any, NamedTuple, TypeVar

import torch.distributed as dist
from torch import Tensor

from embedkit.distributed.ranks import gather, is_main, on_main, rank, share_of, world_size

ResultT = TypeVar("ResultT")


class Part(NamedTuple):
    """Share of a work that a rank takes: number ``rank`` of ``ranks`` shares."""

    rank: int
    ranks: int


Work = Callable[..., tuple[Tensor, ...]]
"""Function of a rank's own object, its ``Part`` and further arguments, pickled by its name. It
returns this rank's rows of one or several tensors, which are all on one device."""


class RankFailedError(RuntimeError):
    """A rank failed in its share of a work, so that no rank has the whole."""


_leading = Event()
"""Set on rank 0 while the other ranks wait for work."""
_apart = Event()
"""Set on another rank while it works alone in the function of ``apart``."""


def lead(work: Callable[[], ResultT], own: Any) -> ResultT:
    """Call ``work`` on rank 0; return its result, or raise its ``UserError``, on all ranks.

    Meanwhile the other ranks take their share of each ``together`` in ``work``. ``own`` is this
    rank's object, which the functions get.
    """

    def led() -> ResultT:
        _leading.set()
        try:
            result = work()
        except Exception:  # A KeyboardInterrupt may come amid a collective: it ends the group.
            release()
            raise
        release()
        return result

    def release() -> None:
        _leading.clear()
        on_main(_end)

    if world_size() == 1:
        return work()
    while not is_main() and (request := on_main(_end)) is not None:
        serve, arguments = request
        with suppress(RankFailedError):  # Rank 0 decides what becomes of the failure.
            serve(own, *arguments)
    return on_main(led)


def helpers() -> int:
    """Return how many other ranks take a share of what this rank asks for by ``together``."""
    return world_size() - 1 if _leading.is_set() else 0


def together(function: Work, own: Any, *arguments: Any) -> tuple[Tensor, ...]:
    """Call a function on all ranks, and return its rows of all ranks in the order of the ranks.

    Outside of ``lead`` this rank does the work alone.

    Raises:
        RankFailedError: a rank failed.
    """
    if not _leading.is_set():
        return function(own, Part(0, 1), *arguments)
    on_main(lambda: (_take_share, (function, *arguments)))
    return _take_share(own, function, *arguments)


def scatter(rows: Any, part: Part) -> Any:
    """Return a rank's share of the rows of rank 0, within a function that ``together`` calls.

    The other ranks' own ``rows`` are ignored. Shares are contiguous, as those of ``share_of``.
    """
    if part.ranks == 1:
        return rows
    share, shares = [None], None
    if is_main():
        shares = [rows[share_of(len(rows), each, part.ranks)] for each in range(part.ranks)]
    dist.scatter_object_list(share, shares, src=0)
    return share[0]


@contextmanager
def apart(function: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """Within the block, have the other ranks call a function, while each rank works alone.

    The function gets a rank's own object and the arguments; it is pickled by its name. The next
    ``together`` waits until the other ranks have returned from it.
    """
    on_main(lambda: (_work_apart, (function, *arguments)))
    _leading.clear()
    try:
        yield
    finally:
        _leading.set()


def is_apart() -> bool:
    """Return whether this rank works for rank 0 while no other rank waits for it."""
    return _apart.is_set()


def _work_apart(own: Any, function: Callable[..., None], *arguments: Any) -> None:
    _apart.set()
    try:
        function(own, *arguments)
    finally:
        _apart.clear()


def _take_share(own: Any, function: Work, *arguments: Any) -> tuple[Tensor, ...]:
    error, cause = None, ""
    try:
        rows = function(own, Part(rank(), world_size()), *arguments)
    except Exception as failure:  # The other ranks wait for this one.
        first, *_ = str(failure).splitlines() or [""]
        error, cause = failure, f"rank {rank()}: {type(failure).__name__}: {first}"
    causes = [""] * world_size()
    dist.all_gather_object(causes, cause)
    for first_cause in filter(None, causes):
        raise RankFailedError(first_cause) from error
    return tuple(gather(each)[0] for each in rows)


def _end() -> Any:
    """Return the request that ends the loop of the other ranks."""
    return None
