"""Opens several sources at a time, each in a process of its own."""

import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context

from embedkit.data.loading import without_script
from embedkit.data.pairs.records import open_records
from embedkit.errors import DataError


def open_all(names: Sequence[str], workers: int) -> Iterator[tuple[str, int]]:
    """Fetch, verify and cache the sources of manifests; yield name and rows as each is done.

    Warnings of the other processes are repeated here, a source's warnings before its rows.

    Raises:
        DataError: the first that a source raises. Sources under way are finished and stay cached.
    """
    if min(workers, len(names)) <= 1:
        yield from ((name, _rows(name)) for name in names)
        return
    # Forked, a process would share locks and threads of the libraries that are imported already.
    others = set(active_children())
    pool = ProcessPoolExecutor(min(workers, len(names)), get_context("spawn"))
    name = names[0]
    try:
        with without_script():
            jobs = {pool.submit(_rows_and_warnings, name): name for name in names}
        for job in as_completed(jobs):
            name = jobs[job]
            rows, messages = job.result()
            for message in messages:
                warnings.warn(message, stacklevel=2)
            yield name, rows
    except BrokenProcessPool:
        # The pool waits for a process that was started while it broke, but never stops it.
        for child in set(active_children()) - others:
            child.kill()
        raise DataError(
            f"{name} or a source beside it: the process that opened it was killed, perhaps for its "
            "memory: open fewer at a time with --workers"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _rows(name: str) -> int:
    try:
        return len(open_records(name))
    except OSError as error:  # also what the hub's client raises
        raise DataError(f"{name}: {' '.join(str(error).split())}") from error
    except Exception as error:
        error.add_note(f"while opening {name}")
        raise


def _rows_and_warnings(name: str) -> tuple[int, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        rows = _rows(name)
    return rows, [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
