"""The tasks that a recipe's ``[evaluation]`` table names, those held out from training included."""

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
        select_tasks(None, wanted.tasks, [Path(expand(each)) for each in wanted.task_dirs])


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
    manifests = [load_manifest(mix.manifest) for mix in recipe.data.mix]
    return open_tasks(recipe.evaluation, manifests, [], folder)


def write_held_out_tasks(
    recipe: Recipe | str | Path, output: str | Path, *, max_documents: int | None = None
) -> list[Path]:
    """Write the task folders of the concepts that a recipe's sources hold out; return these.

    Args:
        recipe: a value, a name under ``recipes/``, or a path.
        output: the folder of the task folders.
        max_documents: largest corpus of a task; by default the recipe's.

    Raises:
        UserError: the recipe is wrong, nothing is held out, or ``output`` holds something else.
    """
    resolved = as_recipe(recipe)
    manifests = [load_manifest(mix.manifest) for mix in resolved.data.mix]
    limit = max_documents or resolved.evaluation.max_documents
    return write_tasks(manifests, Path(output), limit)


def open_tasks(
    wanted: Evaluation,
    manifests: Sequence[Manifest],
    trained_on: Sequence[Records],
    folder: Path,
) -> list[AbsTask]:
    """Open the tasks of an ``[evaluation]`` table; the held-out ones are written to ``folder``.

    Documents of ``trained_on``, the records that a caller gave in place of a manifest, are kept out
    of the held-out tasks.
    """
    folders = [Path(expand(each)) for each in wanted.task_dirs]
    if wanted.held_out:
        names = {manifest.name for manifest in manifests}
        given = [records for records in trained_on if records.name not in names]
        write_tasks(manifests, folder, wanted.max_documents, also_trained_on=given)
        folders.append(folder)
    return select_tasks(None, wanted.tasks, folders)
