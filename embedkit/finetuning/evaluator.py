"""Evaluates a model before, during and after its training."""

from functools import cached_property

from mteb.abstasks.abstask import AbsTask

from embedkit.evaluation.encoding.in_context import encoder_of
from embedkit.evaluation.mteb.scoring import evaluate
from embedkit.evaluation.mteb.task_selection import open_tasks
from embedkit.evaluation.summary import Summary
from embedkit.finetuning.mixture import Mixture
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.recipe import Evaluation
from embedkit.tokens.prompts import benchmark_prompts
from embedkit.training.run_folder import RunFolder


class Evaluator:
    """Scores a model that is being trained, into ``eval/`` of the run's folder.

    It is called on every rank: all encode, and rank 0 scores and writes. A two-stage model reads a
    context of each task's own documents, drawn alike at every evaluation.
    """

    def __init__(
        self, settings: Evaluation, folder: RunFolder, model: EmbeddingModel, mixture: Mixture
    ) -> None:
        self._settings, self._folder = settings, folder
        self._model, self._mixture = model, mixture

    def before(self, start: int) -> None:
        """Score the backbone, unless training has begun."""
        if self._settings.before and start == 0:
            self._score("before")

    def after_step(self, done: int) -> None:
        """Score the model after ``done`` steps, if an evaluation is due."""
        if self._settings.every and done % self._settings.every == 0:
            self._score(f"step-{done:06d}")

    def after(self) -> tuple[Summary | None, Summary | None]:
        """Score the trained model; return the backbone's summary, if there is one, and its own."""
        stored = self._folder.evaluation / "before" / "summary.json"
        before = Summary.read(stored) if stored.is_file() else None
        after = self._score("after")
        return (before if after else None), after

    def _score(self, name: str) -> Summary | None:
        """Score the model, if the recipe names tasks."""
        if not self._settings.wanted:
            return None
        return encoder_of(self._model).run_on_main(
            lambda encoder: evaluate(
                encoder,
                self._tasks,
                self._folder.evaluation / name,
                instructions=benchmark_prompts() if self._settings.instructions == "paper" else {},
                dtype=str(self._model.autocast or "float32").removeprefix("torch."),
            )
        )

    @cached_property
    def _tasks(self) -> list[AbsTask]:
        folder = self._folder.evaluation / "tasks"
        return open_tasks(self._settings, self._mixture.manifests, self._mixture.records, folder)
