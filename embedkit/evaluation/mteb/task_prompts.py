"""Chooses the prompts before the texts of an mteb task."""

from contextlib import suppress
from typing import Literal, NamedTuple

import mteb
from mteb.abstasks.abstask import AbsTask

from embedkit.evaluation.encoding.encoders import TextEncoder
from embedkit.evaluation.encoding.in_context import ContextualEncoder
from embedkit.evaluation.mteb.instructions import Instructions, sides_of
from embedkit.models.contextual.model import Contextual
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.tokens.prompts import SEARCH

Origin = Literal[
    "none", "the model's own", "the paper's", "the task folder's own", "the instructions file's"
]
"""Origins of a task's prompts; an aggregate takes the last of these that any of its parts has."""


class Prompts(NamedTuple):
    """The prefix of each side of a task: query and document, or text if a task has no sides."""

    by_side: dict[str, str]
    origin: Origin


def resolve_prompts(
    task: AbsTask, model: TextEncoder | EmbeddingModel, instructions: Instructions
) -> Prompts:
    """Return the prompts of a file, a task folder, the paper or the model, whichever comes first.

    Args:
        task: task that is scored itself, not as the mean of others.
        model: model whose prompts are stored by side, task or type, as in sentence-transformers.
            Those that a contextual model stores by use come before the paper's.
        instructions: prefixes that the user asks for. A file's come before all others; the paper's
            are for mteb's tasks, and no task folder gets one.
    """
    sides, told = sides_of(task), instructions.of(task)
    folder_prompts = getattr(task, "own_prompts", None)
    origin: Origin = "the model's own"
    if folder_prompts:
        origin = "the task folder's own"
        by_side = {side: folder_prompts.get(side, "") for side in sides}
    elif by_use := _by_use(task, model):
        by_side = {side: by_use[side] for side in sides}
    elif told and not instructions.file and folder_prompts is None:
        origin, by_side = "the paper's", told
    else:
        by_side = {side: _as_mteb_does(task, side, model) for side in sides}
    if told and instructions.file:
        # A side that the file does not name keeps its prompt.
        origin, by_side = "the instructions file's", by_side | told
    return Prompts(by_side, origin if any(by_side.values()) else "none")


def _as_mteb_does(task: AbsTask, side: str, model: TextEncoder | EmbeddingModel) -> str:
    """Choose a prompt as mteb does for a model of sentence-transformers.

    A prompt stored under a task's name is used only if mteb has a task of that name.
    """
    known = [str(task.metadata.type)]
    with suppress(KeyError):
        mteb.get_task(task.metadata.name)
        known.insert(0, task.metadata.name)
    stored, default = model.prompts, model.default_prompt_name
    if side == "text":
        keys = [*known, *([default] if default else [])]
    else:
        keys = [key for use in known for key in (f"{use}-{side}", use)] + [side]
    return next((stored[key] for key in keys if key in stored), "")


def _by_use(task: AbsTask, model: TextEncoder | EmbeddingModel) -> dict[str, str]:
    """Return the prompts that a contextual model was trained with for such a task, if it has any.

    Its four uses are ``search_query``, ``search_document``, ``classification`` and ``clustering``
    (Morris and Rush, 2024). Prompts are named by use or, in the released checkpoints, consist of
    the name of the use.
    """
    if not isinstance(model, Contextual | ContextualEncoder):
        return {}
    uses = {"Retrieval": "search_query", "Clustering": "clustering"}
    query = uses.get(str(task.metadata.type), "classification")
    document = query.replace("query", "document")
    if task.metadata.name == "QuoraRetrieval":  # Its documents are questions too.
        document = query
    known = dict(model.prompts)
    if set(SEARCH.values()) <= set(known.values()):
        known = {use: f"{use}: " for use in (query, document)} | known
    if query not in known or document not in known:
        return {}
    return {"text": known[query], "query": known[query], "document": known[document]}
