"""Evaluates a model before, during and after its training."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mteb.abstasks.abstask import AbsTask

from embedkit.evaluation.evaluate import score
from embedkit.evaluation.mteb.task_selection import open_tasks
from embedkit.evaluation.settings import settings_of
from embedkit.evaluation.summary import Summary
from embedkit.finetuning.mixture import Mixture
from embedkit.finetuning.validator import Validator
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.recipe import Evaluation
from embedkit.training.interfaces import Stop


@dataclass
class Evaluator:
    """Scores a model that is being trained, into ``folder``, which is ``eval/`` of its run.

    It is called on every rank: all score tasks, and rank 0 writes the summary. A two-stage model
    reads a context of each task's own documents, drawn alike at every evaluation.
    """

    settings: Evaluation
    folder: Path
    model: EmbeddingModel
    mixture: Mixture
    validator: Validator | None = None
    """Measures the model on validation rows, where the recipe has some."""

    def before(self, start: int, stop: Stop) -> None:
        """Score the backbone, unless training has begun."""
        if self.validator is not None:
            self.validator.before(start, stop)
        if self.settings.before and start == 0:
            self._score("before", stop, cache=False)

    def takes_long(self, done: int) -> bool:
        """Return whether an evaluation or a validation is due after ``done`` steps."""
        return self._is_due(done) or (self.validator is not None and self.validator.is_due(done))

    def after_step(self, done: int, stop: Stop) -> bool:
        """Score the model after ``done`` steps, if that is due; return whether training is over."""
        over = self.validator is not None and self.validator.after_step(done, stop)
        if self._is_due(done):
            self._score(f"step-{done:06d}", stop, cache=False)
        return over

    def best_step(self) -> int | None:
        """Return the best validated step so far."""
        return None if self.validator is None else self.validator.best_step()

    def after(self, stop: Stop) -> tuple[Summary | None, Summary | None]:
        """Score the trained model; return the backbone's summary, if there is one, and its own."""
        stored = self.folder / "before" / "summary.json"
        before = Summary.read(stored) if stored.is_file() else None
        after = self._score("after", stop, cache=self.settings.cache)
        return (before if after else None), after

    def _is_due(self, done: int) -> bool:
        """Return whether tasks are scored after ``done`` steps."""
        every = self.settings.every
        return bool(every and self.settings.wanted and done % every == 0)

    def _score(self, name: str, stop: Stop, *, cache: bool) -> Summary | None:
        """Score the model, if the recipe names tasks.

        Vectors are kept of the trained model alone: no later evaluation reads those of another.
        """
        if not self.settings.wanted:
            return None
        settings = settings_of(self.settings, {"cache": cache})
        return score(self.model, lambda: self._tasks, self.folder / name, settings, stop)

    @cached_property
    def _tasks(self) -> list[AbsTask]:
        manifests, records = self.mixture.manifests, self.mixture.records
        return open_tasks(self.settings, manifests, records, self.folder / "tasks")
