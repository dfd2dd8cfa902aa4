"""Opens tasks: mteb's by name or benchmark, task folders, and those that a recipe evaluates on."""

import difflib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import mteb
from mteb.abstasks import AbsTaskRetrieval
from mteb.abstasks.abstask import AbsTask
from mteb.abstasks.aggregated_task import AbsTaskAggregate

from embedkit.config import expand
from embedkit.data.manifests.manifest import Manifest, load_manifest
from embedkit.data.pairs.held_out import write_tasks
from embedkit.data.pairs.records import Records
from embedkit.errors import UserError, repeated
from embedkit.evaluation.mteb.instructions import Instructions, sides_of
from embedkit.evaluation.task_folders.reading import kinds_by_name, read_task_folders
from embedkit.recipe import Evaluation, Recipe, as_recipe
from embedkit.tokens.prompts import SIDES

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
    if twice := ", ".join(repeated([task.metadata.name for task in selected])):
        raise UserError(f"{twice}: two tasks have this name; rename the folder of one of them")
    return selected


def leaves(task: AbsTask) -> list[AbsTask]:
    """Return the tasks that an aggregate is the mean of, or the task itself."""
    return list(task.metadata.tasks) if isinstance(task, AbsTaskAggregate) else [task]


def searches_corpus(task: AbsTask) -> bool:
    """Return whether a task, or a part of it, compares its queries with a whole corpus."""
    return any(
        isinstance(part, AbsTaskRetrieval) and part.metadata.type != "Reranking"
        for part in leaves(task)
    )


def sides_by_name(tasks: Sequence[AbsTask]) -> dict[str, tuple[str, ...]]:
    """Return the sides of each task, with the parts of aggregates in their place."""
    return {part.metadata.name: sides_of(part) for task in tasks for part in leaves(task)}


def known_tasks(wanted: Evaluation) -> list[AbsTask]:
    """Return the tasks that an ``[evaluation]`` table names, which are all but the held-out ones.

    Raises:
        UserError: a task's name or folder, or what is asked for as instructions, is wrong.
    """
    instructions, tasks = Instructions.asked_for(wanted.instructions), list[AbsTask]()
    if wanted.benchmark or wanted.tasks or wanted.task_dirs:
        tasks = select_tasks(wanted.benchmark, wanted.tasks, _folders(wanted))
        # A file may name held-out tasks too: ``check_held_out`` knows their names.
        if not wanted.held_out:
            instructions.check(sides_by_name(tasks))
    return tasks


def check_held_out(
    wanted: Evaluation, manifests: Sequence[Manifest], known: Sequence[AbsTask]
) -> None:
    """Verify, if held-out tasks are wanted, that there are any, and the keys of instructions.

    Args:
        wanted: the ``[evaluation]`` table.
        manifests: manifests of the mixture.
        known: the tasks that ``known_tasks`` returned.

    Raises:
        UserError: no manifest holds anything out, or no task has a key of the instructions.
    """
    if not wanted.held_out:
        return
    held_out = [
        task for manifest in manifests if manifest.held_out for task in manifest.held_out.tasks
    ]
    if not held_out:
        raise UserError(
            "evaluation.held_out = true, but no source of the mixture holds anything out: give a "
            "manifest a [held_out] table, or set it to false"
        )
    sides = sides_by_name(known)
    for task in held_out:
        for name, kind in kinds_by_name(task.name, task.type).items():
            sides[name] = SIDES if kind == "retrieval" else ("text",)
    Instructions.asked_for(wanted.instructions).check(sides)


def tasks_of(recipe: Recipe, folder: Path) -> list[AbsTask]:
    """Open the tasks that a recipe evaluates on; the held-out ones are written to ``folder``."""
    if not recipe.evaluation.wanted:
        raise UserError(
            "the recipe has nothing under [evaluation]: set benchmark, tasks or held_out"
        )
    # Other tasks need no manifests, which a run from Python may not have.
    manifests = _manifests(recipe) if recipe.evaluation.held_out else []
    return open_tasks(recipe.evaluation, manifests, [], folder)


def open_tasks(
    wanted: Evaluation, manifests: Sequence[Manifest], trained_on: Sequence[Records], folder: Path
) -> list[AbsTask]:
    """Open the tasks of an ``[evaluation]`` table; the held-out ones are written to ``folder``.

    Held-out tasks leave out documents of ``trained_on``, records given in place of a manifest.
    """
    folders = _folders(wanted)
    if wanted.held_out:
        names = {manifest.name for manifest in manifests}
        given = [records for records in trained_on if records.name not in names]
        write_tasks(manifests, folder, wanted.max_documents, also_trained_on=given)
        folders.append(folder)
    return select_tasks(wanted.benchmark, wanted.tasks, folders)


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


def _folders(wanted: Evaluation) -> list[Path]:
    return [Path(expand(folder)) for folder in wanted.task_dirs]


def _benchmark(name: str) -> list[AbsTask]:
    try:
        return list(mteb.get_benchmark(name).tasks)
    except KeyError:
        known = [benchmark.name for benchmark in mteb.get_benchmarks()]
        raise _unknown("benchmark", name, known) from None


@lru_cache(maxsize=1)
def _english() -> dict[str, AbsTask]:
    tasks = [part for task in _benchmark(MTEB_ENGLISH) for part in (*leaves(task), task)]
    return {task.metadata.name: task for task in tasks}


def _named(name: str) -> AbsTask:
    """Return a task with the splits and languages of MTEB(eng, v1), or else mteb's default ones."""
    try:
        return _english().get(name) or mteb.get_task(name)
    except KeyError:
        known = [task.metadata.name for task in mteb.get_tasks(exclude_superseded=False)]
        raise _unknown("task", name, known) from None


def _unknown(kind: str, name: str, known: Sequence[str]) -> UserError:
    by_lower = {other.lower(): other for other in known}
    near = [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=3)]
    offered = f"; near: {', '.join(near)}" if near else ""
    return UserError(f"{name}: mteb has no such {kind}{offered}")
