"""Warns of tasks that are read behind prompts that a model's training never had."""

import warnings
from collections.abc import Sequence

from mteb.abstasks.abstask import AbsTask

from embedkit.errors import some
from embedkit.evaluation.mteb.instructions import Instructions
from embedkit.evaluation.mteb.task_prompts import resolve_prompts
from embedkit.evaluation.mteb.task_selection import leaves
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.models.trained_prompts import Reading, described


def warn_of_prompts(
    model: EmbeddingModel, tasks: Sequence[AbsTask], instructions: Instructions
) -> None:
    """Warn in one line of all tasks whose prompts training never had, if the model records them."""
    if model.trained_prompts is None:
        return
    parts = [part for task in tasks for part in leaves(task)]
    tasks_of: dict[Reading, list[str]] = {}
    for part in parts:
        for reading in resolve_prompts(part, model, instructions).by_side.items():
            tasks_of.setdefault(reading, []).append(part.metadata.name)
    fresh = model.trained_prompts.new(tasks_of)
    if not fresh:
        return
    names = list(dict.fromkeys(name for reading in fresh for name in tasks_of[reading]))
    warnings.warn(
        f"{model.name}: {len(names)} of {len(parts)} tasks and parts ({some(names)}) have texts "
        f"that its training by embedkit never read so, such as {described(fresh[:1])}; it had "
        f"{model.trained_prompts}",
        stacklevel=2,
    )
