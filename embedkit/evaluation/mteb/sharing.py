"""Shares out an evaluation: ranks search a corpus together, and take all other tasks one by one."""

import math
import pickle
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from mteb.abstasks.abstask import AbsTask

from embedkit import distributed
from embedkit.errors import DataError
from embedkit.evaluation.encoding.encoders import TextEncoder
from embedkit.evaluation.mteb.task_scorer import TaskScorer, reason
from embedkit.evaluation.mteb.task_selection import leaves, searches_corpus
from embedkit.evaluation.mteb.text_statistics import published
from embedkit.evaluation.progress import quiet_libraries
from embedkit.evaluation.summary import TaskScore

Outcome = TaskScore | str
"""A task's score, or the reason why it has none."""
ScorerOf = Callable[[TextEncoder], TaskScorer]
"""Function that makes a rank's scorer of its encoder; it is pickled."""

_POLL = 0.1
"""Seconds between two looks for results while rank 0 has no task."""
_rounds = count()


def outcomes(
    tasks: Sequence[AbsTask],
    scorer: TaskScorer,
    scorer_of: ScorerOf,
    *,
    begin: Callable[[str], None],
    stop: Callable[[], bool],
) -> Generator[tuple[str, Outcome], None, None]:
    """Yield the names of tasks with their outcomes, as these come.

    Where other ranks help rank 0, each task that searches no corpus is scored by one rank alone, at
    the same time as others; then all ranks search the corpora together. Every rank keeps results
    in the output folder.

    Args:
        tasks: tasks to score.
        scorer: scorer of this rank.
        scorer_of: makes the scorer of each other rank.
        begin: called with the name of each task that this rank begins.
        stop: asked before each task; once it returns true, no rank begins another one.
    """
    apart = [task for task in tasks if distributed.helpers() and not searches_corpus(task)]
    if apart:
        apart.sort(key=_size, reverse=True)
        yield from _outcomes_apart(apart, scorer, scorer_of, begin=begin, stop=stop)
    for task in (task for task in tasks if task not in apart):
        if stop():
            return
        begin(task.metadata.name)
        yield task.metadata.name, _outcome(task, scorer)


def _outcomes_apart(
    tasks: Sequence[AbsTask],
    scorer: TaskScorer,
    scorer_of: ScorerOf,
    *,
    begin: Callable[[str], None],
    stop: Callable[[], bool],
) -> Iterator[tuple[str, Outcome]]:
    """Yield the outcomes of tasks, each scored by the first rank that is free.

    The other ranks begin with the largest task, and this one with the smallest, so that it soon
    gets to record their outcomes.
    """
    name = f"tasks/{next(_rounds)}"
    queue, awaited = distributed.JobQueue(name, len(tasks)), set(range(len(tasks)))

    def arrived() -> Iterator[tuple[str, Outcome]]:
        for number, outcome in queue.take(sorted(awaited)):
            awaited.remove(number)
            yield tasks[number].metadata.name, outcome

    pickled = [pickle.dumps(task) for task in tasks]
    with distributed.apart(_score_claimed, name, pickled, scorer_of):
        try:
            while awaited:
                if stop():
                    awaited -= queue.close()
                elif (number := queue.claim(from_end=True)) is not None:
                    begin(tasks[number].metadata.name)
                    queue.post(number, _outcome(tasks[number], scorer))
                else:
                    time.sleep(_POLL)
                yield from arrived()
        except KeyboardInterrupt:
            yield from arrived()
            raise
        finally:
            queue.close()


def _score_claimed(encoder: Any, name: str, tasks: Sequence[bytes], scorer_of: ScorerOf) -> None:
    """Score tasks on a rank other than 0 until all are claimed."""
    queue, scorer = distributed.JobQueue(name, len(tasks)), scorer_of(encoder)
    with quiet_libraries():
        while (number := queue.claim()) is not None:
            queue.post(number, _outcome(tasks[number], scorer))


def _outcome(task: AbsTask | bytes, scorer: TaskScorer) -> Outcome:
    """Score a task, which another rank has pickled, or return why it has no score."""
    try:
        # The task of a folder reads its files when it is unpickled.
        score, _ = scorer.score(pickle.loads(task) if isinstance(task, bytes) else task)
    except Exception as error:  # One failing task must not lose the others.
        return reason(error)
    return score


def _size(task: AbsTask) -> float:
    """Return about how many characters a task's texts have; what is not known may be large."""
    return sum(_size_of_part(part) for part in leaves(task))


def _size_of_part(task: AbsTask) -> float:
    folder = Path(task.metadata.dataset["path"])
    if folder.is_dir():
        return sum(file.stat().st_size for file in folder.iterdir())
    try:
        return sum(each.texts * each.characters for each in published(task))
    except DataError:
        return math.inf
