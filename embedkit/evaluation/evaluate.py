"""An evaluation from what the user names: tasks, data, and what is put around the model."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

from mteb.abstasks.abstask import AbsTask

from embedkit.errors import UserError
from embedkit.evaluation.encoding.distributed_encoder import DistributedEncoder
from embedkit.evaluation.encoding.encoders import CachedEncoder, TextEncoder, Truncated
from embedkit.evaluation.encoding.in_context import ContextualEncoder
from embedkit.evaluation.encoding.vector_cache import VectorCache
from embedkit.evaluation.mteb.estimate import Estimate
from embedkit.evaluation.mteb.estimate import estimate as counted
from embedkit.evaluation.mteb.mirror import check_mirror
from embedkit.evaluation.mteb.scoring import evaluate as score
from embedkit.evaluation.mteb.task_selection import leaves, select_tasks
from embedkit.evaluation.recipe_tasks import tasks_of
from embedkit.evaluation.summary import Summary
from embedkit.models.contextual.model import Contextual
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.recipe import Instructions, Recipe
from embedkit.storage import cache
from embedkit.tokens.prompts import benchmark_prompts


@dataclass(frozen=True)
class TaskSelection:
    """What to evaluate on."""

    tasks: Sequence[str | Path]
    """Names of mteb's tasks, and task folders or folders of them."""
    benchmark: str | None
    recipe: Recipe | None
    data_dir: Path | None
    """A mirror that mteb's tasks read instead of the hub."""
    instructions: Instructions | None
    """Which instructions the tasks of MTEB(eng, v1) get; ``None`` goes by the recipe, and gives
    none where there is no recipe."""

    def __post_init__(self) -> None:
        known = get_args(Instructions)
        if self.instructions is not None and self.instructions not in known:
            raise UserError(f"instructions = {self.instructions!r}: choose {' or '.join(known)}")

    def select(self, folder: Path) -> tuple[list[AbsTask], dict[str, str]]:
        """The tasks and their instructions; what a recipe holds out is written to ``folder``.

        Raises:
            UserError: nothing is named, or what is named is not there.
        """
        folders = [Path(task) for task in self.tasks if Path(task).is_dir()]
        names = [str(task) for task in self.tasks if not Path(task).is_dir()]
        if self.recipe is None:
            tasks = select_tasks(self.benchmark, names, folders)
        elif self.tasks or self.benchmark:
            raise UserError(
                "recipe excludes tasks and benchmark: the recipe says what to evaluate on"
            )
        else:
            tasks = tasks_of(self.recipe, folder)
        if self.data_dir is not None:
            check_mirror(self.data_dir, [part for task in tasks for part in leaves(task)])
        selection = self.instructions or (
            self.recipe.evaluation.instructions if self.recipe else None
        )
        return tasks, benchmark_prompts() if selection == "paper" else {}


@dataclass(frozen=True)
class Contexts:
    """What a contextual model reads before each task; of another model nothing may be asked."""

    documents: int | None = None
    """Drawn from the task's corpus; by default as many as the model has slots."""
    seed: int | None = None
    """Of the draw; 0 by default."""

    def encoder(
        self, model: Contextual, ranks: DistributedEncoder | None = None
    ) -> ContextualEncoder:
        """The model as these say.

        Raises:
            UserError: the model has another number of slots, or a context of its own.
        """
        if model.frozen is not None:
            self.refuse(f"{model.name} has a frozen context, of which all is settled")
        return ContextualEncoder(
            model, seed=self.seed or 0, num_documents=self.documents, ranks=ranks
        )

    def refuse(self, reason: str) -> None:
        """Tell that something was asked for in vain, if it was."""
        asked = {"context_documents": self.documents, "context_seed": self.seed}
        for name, value in asked.items():
            if value is not None:
                raise UserError(f"{name} {value}: {reason}; leave it out")


def evaluate(
    model: EmbeddingModel,
    selection: TaskSelection,
    output: Path,
    *,
    truncate_dim: int | None = None,
    cache_bytes: int | None = None,
    contexts: Contexts | None = None,
) -> Summary:
    """Score a model on all ranks, of which rank 0 writes. Call it inside ``distributed.group``.

    Args:
        model: on this rank's device.
        selection: what to evaluate on.
        output: where results and ``summary.json`` go.
        truncate_dim: score the first dimensions of the vectors alone, at unit norm.
        cache_bytes: of vectors that are kept under ``$EMBEDKIT_CACHE``; ``None`` keeps none.
        contexts: what a contextual model reads before each task.

    Raises:
        UserError: what is named is not there, or the model cannot give it.
    """
    contexts = contexts or Contexts()
    _check(model, truncate_dim, contexts)

    def scored(ranks: DistributedEncoder) -> Summary:
        tasks, instructions = selection.select(output / "tasks")
        vectors = None
        if cache_bytes is not None:
            vectors = VectorCache(cache.root() / "vectors", cache_bytes)
        return score(
            contexts.encoder(model, ranks) if isinstance(model, Contextual) else ranks,
            tasks,
            output,
            around=partial(_around, vectors, truncate_dim),
            instructions=instructions,
            dtype=str(model.autocast or "float32").removeprefix("torch."),
            data_dir=selection.data_dir,
        )

    return DistributedEncoder(model).run_on_main(scored)


def estimate(
    model: EmbeddingModel, selection: TaskSelection, contexts: Contexts | None = None
) -> Estimate:
    """What ``evaluate`` would encode and how long one such device takes; nothing is scored.

    Raises:
        UserError: what is named is not there, or the model cannot give it.
    """
    contexts = contexts or Contexts()
    _check(model, None, contexts)
    documents = None
    if isinstance(model, Contextual) and model.frozen is None:
        documents = contexts.encoder(model).num_documents
    with tempfile.TemporaryDirectory() as folder:
        tasks, instructions = selection.select(Path(folder))
        return counted(
            model,
            tasks,
            instructions=instructions,
            data_dir=selection.data_dir,
            context_documents=documents,
        )


def _check(model: EmbeddingModel, truncate_dim: int | None, contexts: Contexts) -> None:
    """Find on every rank, and before anything is read, what the model cannot give."""
    if isinstance(model, Contextual):
        contexts.encoder(model)
    else:
        contexts.refuse(f"{model.name} has one stage and reads no context")
    if truncate_dim is not None and not 1 <= truncate_dim <= model.width:
        raise UserError(
            f"truncate_dim {truncate_dim}: {model.name} has vectors of {model.width} dimensions; "
            f"choose from 1 to {model.width}"
        )


def _around(
    vectors: VectorCache | None, truncate_dim: int | None, encoder: TextEncoder
) -> TextEncoder:
    if vectors is not None:
        encoder = CachedEncoder(encoder, vectors)
    return encoder if truncate_dim is None else Truncated(encoder, truncate_dim)
