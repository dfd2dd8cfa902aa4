"""An evaluation from what the user names: tasks, data, and what is put around the model."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Unpack

from mteb.abstasks.abstask import AbsTask

from embedkit import distributed
from embedkit.config import from_arguments
from embedkit.errors import ArgumentError, UserError
from embedkit.evaluation.encoding.distributed_encoder import DistributedEncoder
from embedkit.evaluation.encoding.encoders import CachedEncoder, TextEncoder, Truncated
from embedkit.evaluation.encoding.in_context import ContextualEncoder
from embedkit.evaluation.encoding.vector_cache import VectorCache, bytes_of
from embedkit.evaluation.mteb.estimate import Estimate
from embedkit.evaluation.mteb.estimate import estimate as counted
from embedkit.evaluation.mteb.mirror import check_mirror
from embedkit.evaluation.mteb.scoring import evaluate as score
from embedkit.evaluation.mteb.task_selection import leaves, select_tasks
from embedkit.evaluation.recipe_tasks import tasks_of
from embedkit.evaluation.settings import EvaluationOptions, EvaluationSettings
from embedkit.evaluation.summary import Summary
from embedkit.models.contextual.model import Contextual
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.models.load import opened
from embedkit.recipe import Recipe, as_recipe
from embedkit.storage import cache
from embedkit.tokens.prompts import benchmark_prompts


@dataclass(frozen=True)
class TaskSelection:
    """What to evaluate on."""

    tasks: Sequence[str | Path]
    """Names of mteb's tasks, and task folders or folders of them."""
    benchmark: str | None
    recipe: Recipe | None

    def select(
        self, folder: Path, settings: EvaluationSettings
    ) -> tuple[list[AbsTask], dict[str, str]]:
        """Return the tasks and their instructions; what a recipe holds out goes to ``folder``.

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
        if settings.data_dir is not None:
            check_mirror(settings.data_dir, [part for task in tasks for part in leaves(task)])
        instructions = settings.instructions or (
            self.recipe.evaluation.instructions if self.recipe else None
        )
        return tasks, benchmark_prompts() if instructions == "paper" else {}


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
        given = [name for name, value in asked.items() if value is not None]
        if given:
            raise ArgumentError(*((name, f"{reason}; leave it out") for name in given))


def evaluate(
    model: str | Path | EmbeddingModel,
    tasks: Sequence[str | Path] = (),
    output: str | Path = "results",
    *,
    benchmark: str | None = None,
    recipe: Recipe | str | Path | None = None,
    **options: Unpack[EvaluationOptions],
) -> Summary:
    """Score a model on mteb tasks; what is scored already in ``output`` is not scored again.

    Under torchrun all ranks encode, and rank 0 alone writes.

    Args:
        model: a hub id, a folder, ``package:<distribution>/<path>``, an alias, or a loaded model.
        tasks: names of mteb's tasks, and task folders or folders of them.
        output: where results and ``summary.json`` go.
        benchmark: a benchmark's name, such as ``MTEB(eng, v1)``.
        recipe: evaluate on what this recipe evaluates on, in place of tasks and benchmark.
        options: the fields of ``embedkit.EvaluationSettings``, with the defaults they have there.

    Raises:
        UserError: the model or a task does not exist, a task folder is broken, or the model cannot
            give what an option asks for.
    """
    settings = from_arguments(EvaluationSettings, options)
    max_bytes = bytes_of(settings.cache_size) if settings.cache else None
    selection = TaskSelection(tasks, benchmark, None if recipe is None else as_recipe(recipe))
    device = distributed.local_device()
    with distributed.group(device):
        subject = opened(model, dtype=settings.dtype).to(device)
        contexts = _checked_contexts(subject, settings)

        def scored(ranks: DistributedEncoder) -> Summary:
            chosen, instructions = selection.select(Path(output) / "tasks", settings)
            vectors = None
            if max_bytes is not None:
                vectors = VectorCache(cache.root() / "vectors", max_bytes)
            return score(
                contexts.encoder(subject, ranks) if isinstance(subject, Contextual) else ranks,
                chosen,
                Path(output),
                around=partial(_around, vectors, settings.truncate_dim),
                instructions=instructions,
                dtype=str(subject.autocast or "float32").removeprefix("torch."),
                data_dir=settings.data_dir,
            )

        return DistributedEncoder(subject).run_on_main(scored)


def estimate(
    model: str | Path | EmbeddingModel,
    tasks: Sequence[str | Path] = (),
    *,
    benchmark: str | None = None,
    recipe: Recipe | str | Path | None = None,
    **options: Unpack[EvaluationOptions],
) -> Estimate:
    """Count what ``evaluate`` would encode with the same arguments, and how long one device takes.

    Nothing is scored. Kept vectors and ``truncate_dim`` change nothing that is counted.

    Raises:
        UserError: the model or a task does not exist, a task folder is broken, or the model cannot
            give what an option asks for.
    """
    settings = from_arguments(EvaluationSettings, options)
    selection = TaskSelection(tasks, benchmark, None if recipe is None else as_recipe(recipe))
    subject = opened(model, dtype=settings.dtype).to(distributed.local_device())
    contexts = _checked_contexts(subject, settings)
    documents = None
    if isinstance(subject, Contextual) and subject.frozen is None:
        documents = contexts.encoder(subject).num_documents
    with tempfile.TemporaryDirectory() as folder:
        chosen, instructions = selection.select(Path(folder), settings)
        return counted(
            subject,
            chosen,
            instructions=instructions,
            data_dir=settings.data_dir,
            context_documents=documents,
        )


def _checked_contexts(model: EmbeddingModel, settings: EvaluationSettings) -> Contexts:
    """Find on every rank, and before anything is read, what the model cannot give."""
    contexts = Contexts(settings.context_documents, settings.context_seed)
    if isinstance(model, Contextual):
        contexts.encoder(model)
    else:
        contexts.refuse(f"{model.name} has one stage and reads no context")
    if settings.truncate_dim is not None and settings.truncate_dim > model.width:
        reason = (
            f"{model.name} has vectors of {model.width} dimensions; choose from 1 to {model.width} "
            f"(got {settings.truncate_dim})"
        )
        raise ArgumentError(("truncate_dim", reason))
    return contexts


def _around(
    vectors: VectorCache | None, truncate_dim: int | None, encoder: TextEncoder
) -> TextEncoder:
    if vectors is not None:
        encoder = CachedEncoder(encoder, vectors)
    return encoder if truncate_dim is None else Truncated(encoder, truncate_dim)
