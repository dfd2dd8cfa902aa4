"""``evaluate`` and ``estimate`` open a model and tasks by name; ``score`` scores a loaded model."""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Unpack

from mteb.abstasks.abstask import AbsTask

from embedkit import distributed
from embedkit.distributed.interrupt import StopRequest
from embedkit.errors import ArgumentError, UserError
from embedkit.evaluation.encoding.encoders import (
    CachedEncoder,
    DistributedEncoder,
    TextEncoder,
    Truncated,
)
from embedkit.evaluation.encoding.in_context import ContextualEncoder, encoder_of
from embedkit.evaluation.encoding.vector_cache import VectorCache
from embedkit.evaluation.mteb.estimate import Estimate
from embedkit.evaluation.mteb.estimate import estimate as estimate_tasks
from embedkit.evaluation.mteb.instructions import Instructions
from embedkit.evaluation.mteb.mirror import check_mirror
from embedkit.evaluation.mteb.scoring import evaluate as score_tasks
from embedkit.evaluation.mteb.task_selection import leaves, select_tasks, sides_by_name, tasks_of
from embedkit.evaluation.mteb.untrained_prompts import warn_of_prompts
from embedkit.evaluation.mteb.verification import Verification, verify_scores
from embedkit.evaluation.settings import EvaluationOptions, EvaluationSettings, settings_of
from embedkit.evaluation.summary import EvaluationInterrupted, Summary
from embedkit.models import hub
from embedkit.models.contextual.model import Contextual
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.models.load import computing_in, cutting_at, opened
from embedkit.recipe import Recipe, as_recipe
from embedkit.storage import cache
from embedkit.storage.folders import check_writable
from embedkit.storage.offline import ask_again


def evaluate(
    model: str | Path | EmbeddingModel,
    tasks: Sequence[str | Path] = (),
    output: str | Path = "results",
    *,
    recipe: Recipe | str | Path | None = None,
    **options: Unpack[EvaluationOptions],
) -> Summary:
    """Score a model on mteb tasks; what is scored already in ``output`` is not scored again.

    Under torchrun all ranks score tasks, into one ``output`` that all of them see.

    Args:
        model: a hub id, a folder, ``package:<distribution>/<path>``, an alias, or a loaded model.
        tasks: names of mteb's tasks, and task folders or folders of them.
        output: where results and ``summary.json`` go.
        recipe: evaluate as this recipe does, in place of tasks and benchmark; options take
            precedence over its ``[evaluation]``.
        options: the fields of ``embedkit.EvaluationSettings``, with the defaults they have there.

    Raises:
        UserError: the model or a task does not exist, a task folder is broken, the model cannot
            give what an option asks for, or ``output`` cannot be written.
        EvaluationInterrupted: Ctrl-C or SIGTERM came while tasks were scored.
    """
    device, out = distributed.local_device(), Path(output)
    check_writable(out)
    with distributed.group(device), StopRequest(_may_end) as request:
        subject, select, settings = _opened(model, tasks, recipe, options)
        chosen = partial(select, out / "tasks")
        # Libraries swallow a KeyboardInterrupt here and there: the request is looked at again at
        # every batch, and after every task.
        with subject.register_forward_pre_hook(lambda *_: request.repeat()):
            summary = score(subject, chosen, out, settings, stop=lambda: request.asked)
        if request.asked and distributed.is_main():
            raise EvaluationInterrupted(summary, request.signal)
        return summary


def score(
    model: EmbeddingModel,
    tasks: Callable[[], list[AbsTask]],
    output: Path,
    settings: EvaluationSettings,
    stop: Callable[[], bool] = lambda: False,
) -> Summary:
    """Score a loaded model as ``evaluate`` does, on every rank of a group that is there already.

    The model computes in the precision of ``settings``, and afterwards as before. Runs and
    ``eval-mteb`` both score by this function. ``tasks`` is called on rank 0 alone, and so is
    ``stop``, before each task: once it returns true, the rest are left out.
    """

    def scored(encoder: DistributedEncoder) -> Summary:
        kept = None
        if settings.cache_bytes is not None:
            folder = cache.root() / "vectors"
            kept = VectorCache(folder, settings.cache_bytes, model.vector_dtype)

        chosen = tasks()
        instructions = _instructions(settings, chosen)
        warn_of_prompts(model, chosen, instructions)
        return score_tasks(
            encoder,
            chosen,
            output,
            around=partial(_wrapped, kept=kept, dimensions=settings.truncate_dim),
            instructions=instructions,
            dtype=str(model.autocast or "float32").removeprefix("torch."),
            data_dir=settings.mirror,
            stop=stop,
        )

    ask_again()
    with computing_in(settings.dtype, model):
        return _encoder(model, settings).run_on_main(scored)


def estimate(
    model: str | Path | EmbeddingModel,
    tasks: Sequence[str | Path] = (),
    *,
    recipe: Recipe | str | Path | None = None,
    **options: Unpack[EvaluationOptions],
) -> Estimate:
    """Count what ``evaluate`` would encode with the same arguments, and how long one device takes.

    Nothing is scored. Kept vectors and ``truncate_dim`` change nothing that is counted.

    Raises:
        UserError: the model or a task does not exist, a task folder is broken, or the model cannot
            give what an option asks for.
    """
    subject, select, settings = _opened(model, tasks, recipe, options)
    encoder = _encoder(subject, settings)
    documents = None
    if isinstance(encoder, ContextualEncoder) and encoder.frozen is None:
        documents = encoder.num_documents
    with computing_in(settings.dtype, subject), tempfile.TemporaryDirectory() as folder:
        chosen = select(Path(folder))
        instructions = _instructions(settings, chosen)
        warn_of_prompts(subject, chosen, instructions)
        return estimate_tasks(
            subject,
            chosen,
            instructions,
            settings.mirror,
            context_documents=documents,
        )


def verify(
    model: str | Path,
    tasks: Sequence[str | Path],
    summary: Summary,
    *,
    count: int,
    recipe: Recipe | str | Path | None = None,
    **options: Unpack[EvaluationOptions],
) -> Verification:
    """Score tasks again with stock sentence-transformers and mteb, in fp32, and compare.

    They run on the model's folder in a process of their own, which does not import embedkit.

    Args:
        model: a hub id, a folder, ``package:<distribution>/<path>`` or an alias.
        tasks: as in the call of ``evaluate`` that returned ``summary``.
        summary: the scores to verify.
        count: number of tasks to score again: those that took the least time.
        recipe: as in that call.
        options: as in that call.

    Raises:
        UserError: no task has a score, or the stock libraries cannot open or score the model.
        EvaluationInterrupted: Ctrl-C or SIGTERM came; the other process has ended, too.
    """
    subject, select, settings = _opened(model, tasks, recipe, options)
    try:
        with StopRequest(_may_end), tempfile.TemporaryDirectory() as folder:
            return verify_scores(
                _encoder(subject, settings),
                hub.resolve(str(model)),
                select(Path(folder)),
                summary,
                settings,
                count=count,
            )
    except KeyboardInterrupt as interrupt:
        raise EvaluationInterrupted(summary, *interrupt.args) from None


def _may_end() -> bool:
    """Return whether this rank may end now: others that end before rank 0 break a collective."""
    return distributed.is_main() or distributed.is_apart()


def _opened(
    model: str | Path | EmbeddingModel,
    tasks: Sequence[str | Path],
    recipe: Recipe | str | Path | None,
    options: EvaluationOptions,
) -> tuple[EmbeddingModel, Callable[[Path], list[AbsTask]], EvaluationSettings]:
    """Return the model, a function that opens the tasks, and the settings of an evaluation.

    The function writes the held-out tasks of a recipe to the folder that it is given.
    """
    resolved = None if recipe is None else as_recipe(recipe)
    if resolved and (tasks or options.get("benchmark")):
        raise UserError("recipe excludes tasks and benchmark: the recipe says what to evaluate on")
    settings = settings_of(resolved.evaluation if resolved else None, options)
    whole = opened(model, dtype=settings.dtype).to(distributed.local_device())

    def select(folder: Path) -> list[AbsTask]:
        chosen = tasks_of(resolved, folder) if resolved else _named(tasks, settings.benchmark)
        if settings.mirror is not None:
            check_mirror(settings.mirror, [part for task in chosen for part in leaves(task)])
        return chosen

    return cutting_at(settings.max_tokens, whole), select, settings


def _named(tasks: Sequence[str | Path], benchmark: str | None) -> list[AbsTask]:
    folders = [Path(task) for task in tasks if Path(task).is_dir()]
    names = [str(task) for task in tasks if not Path(task).is_dir()]
    return select_tasks(benchmark, names, folders)


def _instructions(settings: EvaluationSettings, tasks: Sequence[AbsTask]) -> Instructions:
    """Return the instructions that are asked for, and verify that they are those of tasks."""
    instructions = Instructions.asked_for(settings.instructions)
    instructions.check(sides_by_name(tasks))
    return instructions


def _wrapped(encoder: TextEncoder, kept: VectorCache | None, dimensions: int | None) -> TextEncoder:
    """Return the encoder with its vectors kept, if asked for, and then shortened, if asked for."""
    whole = CachedEncoder(encoder, kept) if kept else encoder
    return Truncated(whole, dimensions) if dimensions else whole


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
