"""Opens the tasks of a recipe's ``[evaluation]`` table, those held out from training included."""

from collections.abc import Sequence
from pathlib import Path

from mteb.abstasks.abstask import AbsTask

from embedkit.config import expand
from embedkit.data.manifests.manifest import Manifest, load_manifest
from embedkit.data.pairs.held_out import write_tasks
from embedkit.data.pairs.records import Records
from embedkit.errors import UserError
from embedkit.evaluation.mteb.task_selection import select_tasks
from embedkit.recipe import Evaluation, Recipe, as_recipe


def check_tasks(wanted: Evaluation) -> None:
    """Raise for a wrong task name or a broken task folder before training instead of after it."""
    if wanted.tasks or wanted.task_dirs:
        select_tasks(None, wanted.tasks, [Path(expand(folder)) for folder in wanted.task_dirs])


def check_held_out(wanted: Evaluation, manifests: Sequence[Manifest]) -> None:
    """Raise if held-out tasks are wanted and no manifest of the mixture holds anything out."""
    if wanted.held_out and not any(manifest.held_out for manifest in manifests):
        raise UserError(
            "evaluation.held_out = true, but no source of the mixture holds anything out: give a "
            "manifest a [held_out] table, or set it to false"
        )


def tasks_of(recipe: Recipe, folder: Path) -> list[AbsTask]:
    """Open the tasks that a recipe evaluates on; the held-out ones are written to ``folder``.

    Raises:
        UserError: the recipe evaluates on nothing.
    """
    if not recipe.evaluation.wanted:
        raise UserError("the recipe has nothing under [evaluation]: set held_out or tasks")
    return open_tasks(recipe.evaluation, _manifests(recipe), [], folder)


def open_tasks(
    wanted: Evaluation, manifests: Sequence[Manifest], trained_on: Sequence[Records], folder: Path
) -> list[AbsTask]:
    """Open the tasks of an ``[evaluation]`` table; the held-out ones are written to ``folder``.

    Held-out tasks leave out documents of ``trained_on``, records given in place of a manifest.
    """
    folders = [Path(expand(task_dir)) for task_dir in wanted.task_dirs]
    if wanted.held_out:
        names = {manifest.name for manifest in manifests}
        given = [records for records in trained_on if records.name not in names]
        write_tasks(manifests, folder, wanted.max_documents, also_trained_on=given)
        folders.append(folder)
    return select_tasks(None, wanted.tasks, folders)


def write_held_out_tasks(
    recipe: Recipe | str | Path, output: str | Path, *, max_documents: int | None = None
) -> list[Path]:
    """Write task folders of the concepts that a recipe's sources hold out, and return their paths.

    Args:
        recipe: a recipe, a name under ``recipes/``, or a path.
        output: folder of the task folders.
        max_documents: largest corpus of a task; by default the recipe's.

    Raises:
        UserError: the recipe is wrong, nothing is held out, or ``output`` holds something else.
    """
    resolved = as_recipe(recipe)
    limit = max_documents or resolved.evaluation.max_documents
    return write_tasks(_manifests(resolved), Path(output), limit)


def _manifests(recipe: Recipe) -> list[Manifest]:
    return [load_manifest(mix.manifest) for mix in recipe.data.mix]
