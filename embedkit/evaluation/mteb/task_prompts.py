"""Which prompt stands before each side of an mteb task."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import mteb
from mteb.abstasks.abstask import AbsTask
from mteb.abstasks.retrieval import AbsTaskRetrieval

from embedkit.tokens.prompts import SEARCH

Origin = Literal["none", "the model's own", "the paper's", "the task folder's own"]
"""Whose a task's prompts are; where the parts of an aggregate differ, the last of these counts."""


class Prompts(NamedTuple):
    """The prefix of each side of a task: query and document, or text where there are no sides."""

    by_side: dict[str, str]
    origin: Origin


def resolve_prompts(
    task: AbsTask,
    stored: Mapping[str, str],
    instructions: Mapping[str, str],
    *,
    default: str | None = None,
    contextual: bool = False,
) -> Prompts:
    """Return a task folder's own prompts, else the instruction for mteb's task, else the model's.

    Args:
        task: One that is scored itself, not as the mean of others.
        stored: What the model stores, by side, task or type, as sentence-transformers does.
        instructions: Prefixes by the exact names of mteb's tasks; a task folder, whatever its
            name, has none of them.
        default: The key of the prompt that the model applies where a text has no side.
        contextual: Whether what the model stores by use comes before the instructions.
    """
    sided = isinstance(task, AbsTaskRetrieval) or getattr(task, "input1_prompt_type", None)
    sides = ("query", "document") if sided else ("text",)
    folder = task if isinstance(task, _HasPrompts) else None
    name = task.metadata.name
    if folder is not None and folder.own_prompts:
        return _from("the task folder's own", {s: folder.own_prompts.get(s, "") for s in sides})
    if contextual and (by_use := _by_use(task, stored)):
        return _from("the model's own", {side: by_use[side] for side in sides})
    if name in instructions and folder is None:
        return _from("the paper's", dict.fromkeys(sides, instructions[name]))
    return _from("the model's own", {s: _as_mteb_does(task, s, stored, default) for s in sides})


@runtime_checkable
class _HasPrompts(Protocol):
    own_prompts: Mapping[str, str]


def _from(origin: Origin, by_side: dict[str, str]) -> Prompts:
    return Prompts(by_side, origin if any(by_side.values()) else "none")


def _as_mteb_does(task: AbsTask, side: str, stored: Mapping[str, str], default: str | None) -> str:
    """Choose among a model's prompts as mteb does for a model of sentence-transformers.

    A prompt that is stored for a task's name counts only where mteb has a task of that name.
    """
    name, type_ = task.metadata.name, str(task.metadata.type)
    known = [name, type_] if _has_task(name) else [type_]
    if side == "text":
        keys = [*known, *([default] if default else [])]
    else:
        keys = [key for each in known for key in (f"{each}-{side}", each)] + [side]
    return next((stored[key] for key in keys if key in stored), "")


def _has_task(name: str) -> bool:
    try:
        mteb.get_task(name)
    except KeyError:
        return False
    return True


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
    return {"text": known[query], "query": known[query], "document": known[document]}
