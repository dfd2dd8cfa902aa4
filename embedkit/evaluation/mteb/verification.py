"""Scores tasks again with stock sentence-transformers and mteb, and compares the scores."""

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from mteb.abstasks.abstask import AbsTask
from mteb.abstasks.aggregated_task import AbsTaskAggregate
from rich.table import Column, Table

from embedkit import distributed
from embedkit.errors import UserError
from embedkit.evaluation.encoding.encoders import DistributedEncoder
from embedkit.evaluation.encoding.in_context import ContextualEncoder
from embedkit.evaluation.mteb import stock_scores
from embedkit.evaluation.mteb.mirror import with_local_data
from embedkit.evaluation.mteb.text_statistics import corpus_of
from embedkit.evaluation.settings import EvaluationSettings
from embedkit.evaluation.summary import Summary, TaskScore
from embedkit.evaluation.tables import as_text
from embedkit.models.contextual.export import is_own_code
from embedkit.models.model_files import fetched, read_json

TOLERANCE = 1e-4
"""Largest difference between two scores in fp32 that rounding explains: 0.01 of 100 points."""
_OF_MTEB = ("none", "the model's own")
"""Origins of prompts that mteb chooses by itself."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Scores of embedkit and of stock libraries on the same tasks, between -1 and 1."""

    model: str
    dtype: str
    """Precision of embedkit's scores; the others are computed in fp32."""
    scores: Mapping[str, tuple[float, float]]
    """embedkit's score and the stock libraries' of each task."""
    not_scored: Mapping[str, str]
    """Reason why the stock libraries have no score of a task."""

    @property
    def largest(self) -> float:
        """Largest difference; NaN if any is."""
        return float(np.max([abs(ours - theirs) for ours, theirs in self.scores.values()]))

    @property
    def failed(self) -> bool:
        """Whether both computed in fp32, and yet differ by more than ``TOLERANCE``."""
        return self.dtype == "float32" and not self.largest <= TOLERANCE

    def text(self) -> str:
        """Return a table of the scores, and the largest difference, times 100 as is the custom."""
        names = ("embedkit", "sentence-transformers and mteb", "difference")
        table = Table("task", *(Column(name, justify="right") for name in names))
        table.title = f"{self.model}, verified (scores times 100)"
        for task, (ours, theirs) in self.scores.items():
            numbers = (ours, theirs, abs(ours - theirs))
            table.add_row(task, *(f"{100 * number:.4f}" for number in numbers))
        told = f"largest difference: {100 * self.largest:.4f}"
        if self.dtype != "float32":
            told += f"; embedkit computed in {self.dtype}: --dtype fp32 gives a verdict"
        elif self.failed:
            told += (
                f", more than {100 * TOLERANCE:.2f}: rounding explains it only where nearly equal "
                "vectors decide the score"
            )
        lacking = [
            f"{task}: not scored by the stock libraries: {reason}"
            for task, reason in self.not_scored.items()
        ]
        return "\n".join([as_text(table).rstrip(), told, *lacking]) + "\n"


def verify_scores(
    encoder: DistributedEncoder,
    folder: str,
    tasks: Sequence[AbsTask],
    summary: Summary,
    settings: EvaluationSettings,
    *,
    count: int,
) -> Verification:
    """Score tasks of ``summary`` again, in a process that does not import embedkit.

    Args:
        encoder: the model that was scored, which draws the documents of contexts again.
        folder: its folder or hub id, which sentence-transformers opens.
        tasks: tasks from ``select_tasks``.
        summary: the scores to verify.
        settings: those of the evaluation.
        count: number of tasks: those that took the least time. A mean of several is left out.

    Raises:
        UserError: no task has a score, the folder needs code that embedkit did not write, or the
            stock libraries cannot open or score the model.
    """
    scored = [
        (score, task)
        for task in tasks
        if (score := summary.scores.get(task.metadata.name))
        and not isinstance(task, AbsTaskAggregate)
    ]
    if not scored:
        raise UserError("verify: none of the tasks has a score of its own")
    scored.sort(key=lambda pair: pair[0].seconds or 0.0)
    contextual = isinstance(encoder, ContextualEncoder)
    if contextual and not is_own_code(fetched(folder)):
        raise UserError(
            f"verify: {folder} needs code that this version of embedkit did not write, and which "
            "is therefore not run; embedkit export --to sentence-transformers writes it anew"
        )
    request = {
        "model": folder,
        "device": distributed.local_device().type,
        "trust_remote_code": contextual,
        "max_tokens": settings.max_tokens,
        "truncate_dim": settings.truncate_dim,
        "tasks": [_described(*pair, encoder, settings.mirror) for pair in scored[:count]],
    }
    theirs = _scored_elsewhere(request)
    not_scored = {name: reason for name, reason in theirs.items() if isinstance(reason, str)}
    scores = {
        name: (summary.scores[name].score, score)
        for name, score in theirs.items()
        if not isinstance(score, str)
    }
    if not scores:
        _refuse(request, next(iter(not_scored.values())))
    return Verification(summary.model, summary.dtype, scores, not_scored)


def _described(
    score: TaskScore, task: AbsTask, encoder: DistributedEncoder, data_dir: Path | None
) -> dict[str, Any]:
    """Return a task with its data, in the classes of mteb alone, as ``stock_scores`` takes it."""
    task = with_local_data(task, data_dir)
    if not task.data_loaded:
        task.load_data()
    of_mteb = [kind for kind in type(task).__mro__ if kind.__module__.startswith("mteb.")]
    own = type(task).__mro__[: type(task).__mro__.index(of_mteb[0])]
    of_class = {
        name: value
        for kind in reversed(own)
        for name, value in vars(kind).items()
        if not name.startswith(("__", "_abc"))
    }
    contextual, context = isinstance(encoder, ContextualEncoder), None
    if isinstance(encoder, ContextualEncoder) and encoder.frozen is None:
        prompt = score.prompts.get("document", score.prompts.get("text"))
        context = (encoder.draw(corpus_of(task)), prompt)
    # Prompts under a task's type apply to any task; those that mteb chooses itself are not told.
    kind, prompts = str(task.metadata.type), None
    if contextual or score.prompt_origin not in _OF_MTEB:
        prompts = {
            kind if side == "text" else f"{kind}-{side}": prompt
            for side, prompt in score.prompts.items()
        }
    return {
        "name": task.metadata.name,
        "base": of_mteb[0],
        "of_class": of_class,
        "of_object": vars(task),
        "prompts": prompts,
        "context": context,
    }


def _scored_elsewhere(request: Mapping[str, Any]) -> dict[str, float | str]:
    """Return the stock libraries' score of each task, or the reason why it has none."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "request.pickle").write_bytes(pickle.dumps(request))
        # Isolated from the paths of this process: the libraries installed are those that are run.
        words = [sys.executable, "-I", stock_scores.__file__, name]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            _refuse(request, reason)
        scores: dict[str, float | str] = read_json(folder / "scores.json")
    return scores


def _refuse(request: Mapping[str, Any], reason: str) -> NoReturn:
    model = request["model"]
    raise UserError(f"verify: sentence-transformers and mteb cannot score {model}: {reason}")
