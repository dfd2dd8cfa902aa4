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

    def before(self, start: int, stop: Stop) -> None:
        """Score the backbone, unless training has begun."""
        if self.settings.before and start == 0:
            self._score("before", stop, cache=False)

    def takes_long(self, done: int) -> bool:
        """Return whether an evaluation is due after ``done`` steps."""
        every = self.settings.every
        return bool(every and self.settings.wanted and done % every == 0)

    def after_step(self, done: int, stop: Stop) -> None:
        """Score the model after ``done`` steps, if an evaluation is due."""
        if self.takes_long(done):
            self._score(f"step-{done:06d}", stop, cache=False)

    def after(self, stop: Stop) -> tuple[Summary | None, Summary | None]:
        """Score the trained model; return the backbone's summary, if there is one, and its own."""
        stored = self.folder / "before" / "summary.json"
        before = Summary.read(stored) if stored.is_file() else None
        after = self._score("after", stop, cache=self.settings.cache)
        return (before if after else None), after

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
