"""``evaluate`` scores a model on mteb's tasks, and records their outcomes as they come."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from mteb.abstasks.abstask import AbsTask

from embedkit.errors import UserError
from embedkit.evaluation.encoding.encoders import TextEncoder
from embedkit.evaluation.encoding.in_context import ContextualEncoder
from embedkit.evaluation.mteb.instructions import NO_INSTRUCTIONS, Instructions
from embedkit.evaluation.mteb.sharing import Outcome, ScorerOf, outcomes
from embedkit.evaluation.mteb.task_scorer import TaskScorer
from embedkit.evaluation.progress import print_line, progress_of, quiet_libraries
from embedkit.evaluation.summary import EvaluationInterrupted, Summary
from embedkit.storage.versions import versions_of


def _as_it_is(encoder: TextEncoder) -> TextEncoder:
    return encoder


def evaluate(
    encoder: TextEncoder | ContextualEncoder,
    tasks: Sequence[AbsTask],
    output: Path,
    *,
    around: Callable[[TextEncoder], TextEncoder] = _as_it_is,
    instructions: Instructions = NO_INSTRUCTIONS,
    dtype: str = "float32",
    data_dir: Path | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Summary:
    """Score a model on tasks, keep each result under ``output``, and write ``summary.json`` there.

    Results that ``output`` has already are not computed again. A task that fails is reported in the
    summary, and the others go on; an interruption loses only the task at hand.

    The file is written after each task, and keeps the scores of other tasks that it has of the same
    model, precision, prompts and contexts. The summary returned has only the tasks given.

    Args:
        encoder: model. A contextual one is put into a context of each task, which is kept under
            ``output/contexts`` and recorded in the summary.
        tasks: tasks from ``select_tasks``.
        output: folder of the results; one folder can hold those of many models.
        around: wraps the encoder in a cache or the like; a contextual one within its context. It is
            pickled for the other ranks.
        instructions: prefixes that the user asks for, which replace the model's own.
        dtype: precision of the model, for the record.
        data_dir: folder that mteb's tasks read instead of the hub: see ``with_local_data``.
        stop: asked before each task; once it returns true, the remaining tasks are left out.

    Raises:
        UserError: no task is given, or ``summary.json`` is not embedkit's.
        EvaluationInterrupted: a KeyboardInterrupt came while a task was scored.
    """
    if not tasks:
        raise UserError("no task to evaluate on: name a benchmark, tasks or folders of tasks")
    scorer_of: ScorerOf = partial(
        TaskScorer.of,
        around=around,
        output=output,
        instructions=instructions,
        data_dir=data_dir,
        dtype=dtype,
    )
    scorer = scorer_of(encoder)
    summary, path = _nothing_scored(tasks, scorer), output / "summary.json"
    with quiet_libraries(), progress_of(len(tasks)) as progress:
        if remark := summary.replaces(path):
            print_line(progress.console, f"note: {remark}")

        def begin(name: str) -> None:
            progress.update(progress.task_ids[0], description=name)

        try:
            # Closed at once when the summary cannot be written: other ranks begin no more tasks.
            with closing(outcomes(tasks, scorer, scorer_of, begin=begin, stop=stop)) as scored:
                for name, outcome in scored:
                    summary = _with_outcome(summary, name, outcome)
                    summary.merge_into(path)
                    print_line(progress.console, f"{name}: {summary.outcome(name)}")
                    progress.advance(progress.task_ids[0])
        except KeyboardInterrupt as interrupt:
            raise EvaluationInterrupted(summary, *interrupt.args) from None
    return summary


def _nothing_scored(tasks: Sequence[AbsTask], scorer: TaskScorer) -> Summary:
    return Summary(
        model=scorer.wrapped.name,
        identity=scorer.identity,
        dtype=scorer.dtype,
        tasks={task.metadata.name: str(task.metadata.type) for task in tasks},
        scores={},
        failed={},
        versions=versions_of(("embedkit-neobert", "mteb", "torch")),
        revision=scorer.published.revision,
    )


def _with_outcome(summary: Summary, name: str, outcome: Outcome) -> Summary:
    """Return the summary with a task's outcome; scores are in the order of the tasks."""
    if isinstance(outcome, str):
        return replace(summary, failed={**summary.failed, name: outcome})
    scores = {**summary.scores, name: outcome}
    return replace(summary, scores={task: scores[task] for task in summary.tasks if task in scores})
