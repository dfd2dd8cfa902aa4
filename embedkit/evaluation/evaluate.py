"""``evaluate`` and ``estimate``: open a model and tasks by name, and score or count them."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from mteb.abstasks.abstask import AbsTask

from embedkit import distributed
from embedkit.config import from_arguments
from embedkit.errors import ArgumentError, UserError
from embedkit.evaluation.encoding.encoders import (
    CachedEncoder,
    DistributedEncoder,
    TextEncoder,
    Truncated,
)
from embedkit.evaluation.encoding.in_context import ContextualEncoder, encoder_of
from embedkit.evaluation.encoding.vector_cache import VectorCache, bytes_of
from embedkit.evaluation.mteb.estimate import Estimate
from embedkit.evaluation.mteb.estimate import estimate as estimate_tasks
from embedkit.evaluation.mteb.mirror import check_mirror
from embedkit.evaluation.mteb.scoring import evaluate as score_tasks
from embedkit.evaluation.mteb.task_selection import leaves, select_tasks, tasks_of
from embedkit.evaluation.settings import EvaluationOptions, EvaluationSettings
from embedkit.evaluation.summary import Summary
from embedkit.models.contextual.model import Contextual
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.models.load import opened
from embedkit.recipe import Recipe, as_recipe
from embedkit.storage import cache
from embedkit.tokens.prompts import benchmark_prompts


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
    resolved = None if recipe is None else as_recipe(recipe)
    device = distributed.local_device()
    with distributed.group(device):
        subject = opened(model, dtype=settings.dtype).to(device)

        def around(inner: TextEncoder) -> TextEncoder:
            if max_bytes is not None:
                inner = CachedEncoder(inner, VectorCache(cache.root() / "vectors", max_bytes))
            return Truncated(inner, settings.truncate_dim) if settings.truncate_dim else inner

        def score(encoder: DistributedEncoder) -> Summary:
            out = Path(output)
            chosen, instructions = _select(tasks, benchmark, resolved, out / "tasks", settings)
            return score_tasks(
                encoder,
                chosen,
                out,
                around=around,
                instructions=instructions,
                dtype=str(subject.autocast or "float32").removeprefix("torch."),
                data_dir=settings.data_dir,
            )

        return _encoder(subject, settings).run_on_main(score)


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
    resolved = None if recipe is None else as_recipe(recipe)
    subject = opened(model, dtype=settings.dtype).to(distributed.local_device())
    encoder = _encoder(subject, settings)
    documents = None
    if isinstance(encoder, ContextualEncoder) and encoder.frozen is None:
        documents = encoder.num_documents
    with tempfile.TemporaryDirectory() as folder:
        chosen, instructions = _select(tasks, benchmark, resolved, Path(folder), settings)
        data_dir = settings.data_dir
        return estimate_tasks(subject, chosen, instructions, data_dir, context_documents=documents)


def _select(
    tasks: Sequence[str | Path],
    benchmark: str | None,
    recipe: Recipe | None,
    folder: Path,
    settings: EvaluationSettings,
) -> tuple[list[AbsTask], dict[str, str]]:
    """Return tasks and their instructions; a recipe's held-out tasks are written to ``folder``."""
    instructions = settings.instructions
    if recipe is None:
        folders = [Path(task) for task in tasks if Path(task).is_dir()]
        names = [str(task) for task in tasks if not Path(task).is_dir()]
        chosen = select_tasks(benchmark, names, folders)
    elif tasks or benchmark:
        raise UserError("recipe excludes tasks and benchmark: the recipe says what to evaluate on")
    else:
        chosen = tasks_of(recipe, folder)
        instructions = instructions or recipe.evaluation.instructions
    if settings.data_dir is not None:
        check_mirror(settings.data_dir, [part for task in chosen for part in leaves(task)])
    return chosen, benchmark_prompts() if instructions == "paper" else {}


def _encoder(model: EmbeddingModel, settings: EvaluationSettings) -> DistributedEncoder:
    """Return the model as settings ask for it, or raise for what it cannot give."""
    if settings.truncate_dim is not None and settings.truncate_dim > model.width:
        mistake = f"{model.name} has vectors of {model.width} dimensions"
        remedy = f"choose from 1 to {model.width} (got {settings.truncate_dim})"
        raise ArgumentError(("truncate_dim", f"{mistake}; {remedy}"))
    documents, seed = settings.context_documents, settings.context_seed
    if isinstance(model, Contextual) and model.frozen is None:
        return ContextualEncoder(model, seed=seed or 0, num_documents=documents)
    reason = "one stage and reads no context"
    if isinstance(model, Contextual):
        reason = "a frozen context, of which all is settled"
    mistake = f"{model.name} has {reason}; leave it out"
    asked = {"context_documents": documents, "context_seed": seed}
    if given := [(name, mistake) for name, value in asked.items() if value is not None]:
        raise ArgumentError(*given)
    return encoder_of(model)
