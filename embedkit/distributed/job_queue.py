"""``JobQueue``: jobs that ranks claim one by one, each when it is free, and their results."""

import pickle
from collections.abc import Iterable, Iterator
from typing import Any

from torch.distributed.distributed_c10d import _get_default_store


class JobQueue:
    """The jobs 0 to ``jobs`` - 1, which any rank claims, and results, which one rank takes.

    It is in the store of the process group, which needs no collective: ranks ask when they like.

    Args:
        name: name of the queue, which no earlier queue of the group had.
        jobs: number of jobs.
    """

    def __init__(self, name: str, jobs: int) -> None:
        self._store: Any = _get_default_store()  # The types of torch lack values of bytes.
        self._name, self._jobs = f"embedkit/{name}", jobs

    def claim(self, *, from_end: bool = False) -> int | None:
        """Return the first or the last job that no rank has claimed yet, which is this rank's."""
        jobs = range(self._jobs)
        return next(filter(self._is_mine, jobs[::-1] if from_end else jobs), None)

    def close(self) -> set[int]:
        """Claim all jobs that no rank has claimed yet, and return them."""
        return set(filter(self._is_mine, range(self._jobs)))

    def post(self, job: int, result: Any) -> None:
        """Send the result of a job to the rank that takes it, which unpickles it."""
        self._store.set(f"{self._name}/{job}/result", pickle.dumps(result))

    def take(self, jobs: Iterable[int]) -> Iterator[tuple[int, Any]]:
        """Yield those of ``jobs`` that have a result, each with its result."""
        for job in jobs:
            key = f"{self._name}/{job}/result"
            if self._store.check([key]):
                yield job, pickle.loads(self._store.get(key))

    def _is_mine(self, job: int) -> bool:
        return self._store.add(f"{self._name}/{job}/claims", 1) == 1
