"""Finds mteb's tasks and task folders by the names that users give."""

import difflib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import mteb
from mteb.abstasks.abstask import AbsTask
from mteb.abstasks.aggregated_task import AbsTaskAggregate

from embedkit.errors import UserError
from embedkit.evaluation.task_folders.reading import read_task_folders

MTEB_ENGLISH = "MTEB(eng, v1)"


def select_tasks(
    benchmark: str | None = None, tasks: Sequence[str] = (), task_dirs: Sequence[Path] = ()
) -> list[AbsTask]:
    """Return the tasks of a benchmark, the named tasks and the tasks of folders.

    Raises:
        UserError: nothing is named, a name is unknown, or two tasks have one name.
    """
    selected = _benchmark(benchmark) if benchmark else []
    selected += [_named(name) for name in dict.fromkeys(tasks)]
    selected += [task for folder in task_dirs for task in read_task_folders(folder)]
    if not selected:
        raise UserError("no task to evaluate on: name a benchmark, tasks or folders of tasks")
    names = [task.metadata.name for task in selected]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(
            f"{', '.join(repeated)}: two tasks have this name; rename the folder of one of them"
        )
    return selected


def leaves(task: AbsTask) -> list[AbsTask]:
    """Return the tasks that an aggregate is the mean of, or the task itself."""
    return list(task.metadata.tasks) if isinstance(task, AbsTaskAggregate) else [task]


def _benchmark(name: str) -> list[AbsTask]:
    try:
        return list(mteb.get_benchmark(name).tasks)
    except KeyError:
        known = [benchmark.name for benchmark in mteb.get_benchmarks()]
        raise UserError(f"{name}: mteb has no such benchmark{_near(name, known)}") from None


def _named(name: str) -> AbsTask:
    """Return a task with the splits and languages of MTEB(eng, v1), or else mteb's default ones."""
    if name in _english():
        return _english()[name]
    try:
        return mteb.get_task(name)
    except KeyError:
        known = [task.metadata.name for task in mteb.get_tasks(exclude_superseded=False)]
        raise UserError(f"{name}: mteb has no such task{_near(name, known)}") from None


@lru_cache(maxsize=1)
def _english() -> dict[str, AbsTask]:
    tasks = [part for task in _benchmark(MTEB_ENGLISH) for part in (*leaves(task), task)]
    return {task.metadata.name: task for task in tasks}


def _near(name: str, known: Sequence[str]) -> str:
    by_lower = {other.lower(): other for other in known}
    near = [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=3)]
    return f"; near: {', '.join(near)}" if near else ""
