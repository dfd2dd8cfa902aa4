"""Evaluation in the course of a run: before the first step, on the way, after the last."""

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path

from mteb.abstasks.abstask import AbsTask

from embedkit.config import expand
from embedkit.data.manifests.manifest import Manifest, load_manifest
from embedkit.data.pairs.held_out import write_tasks
from embedkit.data.pairs.records import Records
from embedkit.errors import UserError
from embedkit.evaluation.encoding.in_context import ContextualEncoder
from embedkit.evaluation.encoding.over_ranks import OverRanks
from embedkit.evaluation.mteb.scoring import evaluate
from embedkit.evaluation.mteb.task_selection import select_tasks
from embedkit.evaluation.summary import Summary
from embedkit.finetuning.mixture import Mixture
from embedkit.models.contextual.model import Contextual
from embedkit.models.embedder import Embedder
from embedkit.recipe import Evaluation, Recipe
from embedkit.tokens.prompts import instruction_prompts
from embedkit.training.run_folder import RunFolder


class Measuring:
    """Scores a model that is being trained, into ``eval/`` of the run's folder.

    Called on every rank: all encode, and rank 0 scores and writes. A two-stage model reads a
    context of each task's own documents, drawn alike at every time.
    """

    def __init__(
        self,
        wanted: Evaluation,
        folder: RunFolder,
        model: Embedder | Contextual,
        mixture: Mixture,
    ) -> None:
        self._wanted, self._folder = wanted, folder
        self._model, self._mixture = model, mixture

    def before(self, start: int) -> None:
        """Score the backbone, unless training has begun."""
        if self._wanted.before and start == 0:
            self._score("before")

    def after_step(self, done: int) -> None:
        """Score on the way, if ``done`` steps are a time for it."""
        if self._wanted.every and done % self._wanted.every == 0:
            self._score(f"step-{done:06d}")

    def after(self) -> tuple[Summary | None, Summary | None]:
        """Score the trained model: the backbone's summary, where there is one, and the model's."""
        stored = self._folder.evaluation / "before" / "summary.json"
        before = Summary.read(stored) if stored.is_file() else None
        after = self._score("after")
        return (before if after else None), after

    def _score(self, name: str) -> Summary | None:
        """Score on what is wanted, if anything is."""
        if not self._wanted.wanted:
            return None
        return OverRanks(self._model).lead(partial(self._scored, name))

    def _scored(self, name: str, ranks: OverRanks) -> Summary:
        model = self._model
        return evaluate(
            ContextualEncoder(model, ranks=ranks) if isinstance(model, Contextual) else ranks,
            self._tasks,
            self._folder.evaluation / name,
            instructions=instruction_prompts(task.metadata.name for task in self._tasks),
            dtype=str(model.autocast or "float32").removeprefix("torch."),
        )

    @cached_property
    def _tasks(self) -> list[AbsTask]:
        folder = self._folder.evaluation / "tasks"
        return _tasks(self._wanted, self._mixture.manifests, self._mixture.records, folder)


def check_tasks(wanted: Evaluation) -> None:
    """Find a wrong task name or a broken task folder before the training, not after it."""
    if wanted.tasks or wanted.task_dirs:
        select_tasks(None, wanted.tasks, [Path(expand(each)) for each in wanted.task_dirs])


def check_held_out(wanted: Evaluation, manifests: Sequence[Manifest]) -> None:
    """See whether there is anything held out to evaluate on."""
    if wanted.held_out and not any(manifest.held_out for manifest in manifests):
        raise UserError(
            "evaluation.held_out = true, but no source of the mixture holds anything out: give a "
            "manifest a [held_out] table, or set it to false"
        )


def tasks_of(recipe: Recipe, folder: Path) -> list[AbsTask]:
    """What a recipe evaluates on; the held-out tasks are written to ``folder``.

    Raises:
        UserError: the recipe evaluates on nothing.
    """
    if not recipe.evaluation.wanted:
        raise UserError("the recipe has nothing under [evaluation]: set held_out or tasks")
    manifests = [load_manifest(mix.manifest) for mix in recipe.data.mix]
    return _tasks(recipe.evaluation, manifests, [], folder)


def _tasks(
    wanted: Evaluation,
    manifests: Sequence[Manifest],
    trained_on: Sequence[Records],
    folder: Path,
) -> list[AbsTask]:
    folders = [Path(expand(each)) for each in wanted.task_dirs]
    if wanted.held_out:
        names = {manifest.name for manifest in manifests}
        given = [records for records in trained_on if records.name not in names]
        write_tasks(manifests, folder, wanted.max_documents, also_trained_on=given)
        folders.append(folder)
    return select_tasks(None, wanted.tasks, folders)
