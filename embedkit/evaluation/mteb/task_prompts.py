"""Which prompt stands before each side of an mteb task."""

from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

from mteb.abstasks.abstask import AbsTask
from mteb.abstasks.retrieval import AbsTaskRetrieval

from embedkit.evaluation.mteb.task_selection import leaves
from embedkit.tokens.prompts import SEARCH


def resolve_prompts(
    task: AbsTask,
    stored: Mapping[str, str],
    instructions: Mapping[str, str],
    *,
    contextual: bool = False,
) -> dict[str, str]:
    """The prefix of each side of a task: query and document, or text where there are no sides.

    A task folder's own come first, then the instructions, then what is stored with the model. Of a
    contextual model what it stores by use comes before the instructions.
    """
    if contextual:
        instructions = {**instructions, **_by_use(task, stored)}
    sided = isinstance(task, AbsTaskRetrieval) or getattr(task, "input1_prompt_type", None)
    sides = ("query", "document") if sided else ("text",)
    if isinstance(task, _HasPrompts) and task.own_prompts:
        return {side: task.own_prompts.get(side, "") for side in sides}
    name, type_ = task.metadata.name, str(task.metadata.type)
    prompts = {}
    for side in sides:
        by_task = [f"{name}-{side}", name] if sided else [name]
        by_type = [f"{type_}-{side}", type_, side] if sided else [type_]
        found = [instructions[key] for key in by_task if key in instructions]
        found += [stored[key] for key in (*by_task, *by_type) if key in stored]
        prompts[side] = found[0] if found else ""
    return prompts


def parts_with_instructions(
    task: AbsTask, instructions: Mapping[str, str]
) -> Iterator[tuple[AbsTask, dict[str, str]]]:
    """The tasks that are scored, each with its instructions.

    What is asked of the whole is asked of each part that has no instruction of its own.
    """
    for part in leaves(task):
        given = _renamed(instructions, task.metadata.name, part.metadata.name)
        yield part, given | dict(instructions)


@runtime_checkable
class _HasPrompts(Protocol):
    own_prompts: Mapping[str, str]


def _renamed(prompts: Mapping[str, str], old: str, new: str) -> dict[str, str]:
    """The prompts of the task ``old``, as those of ``new``."""
    endings = ("", "-query", "-document")
    return {new + end: prompts[old + end] for end in endings if old + end in prompts}


def _by_use(task: AbsTask, stored: Mapping[str, str]) -> dict[str, str]:
    """What a contextual model was trained to read before the texts of such a task, if it is known.

    Such models tell four uses apart: ``search_query``, ``search_document``, ``classification`` and
    ``clustering`` (Morris and Rush, 2024). They are the names of its prompts or, as in the released
    checkpoints, the words of those of a side or of a source.
    """
    type_, name = str(task.metadata.type), task.metadata.name
    query, document = {
        "Retrieval": ("search_query", "search_document"),
        "Clustering": ("clustering", "clustering"),
    }.get(type_, ("classification", "classification"))
    if name == "QuoraRetrieval":  # Its documents are questions, as its queries are.
        document = query
    known = dict(stored)
    if set(SEARCH.values()) <= set(stored.values()):
        known = {use: f"{use}: " for use in (query, document)} | known
    if query not in known or document not in known:
        return {}
    return {name: known[query], f"{name}-query": known[query], f"{name}-document": known[document]}
