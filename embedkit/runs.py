"""A recipe in, objects built, work done: what the commands and the Python API call."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from embedkit import distributed, precision, report, run_folder
from embedkit.data.batches import Batches, ContrastiveBatch, stream
from embedkit.data.records import Records
from embedkit.errors import UserError
from embedkit.evaluation.mteb import evaluate as score
from embedkit.evaluation.selection import select_tasks
from embedkit.evaluation.summary import Summary, comparison
from embedkit.measuring import Measuring, check_held_out, check_tasks, tasks_of
from embedkit.metrics import Metrics, check_trackers, open_trackers
from embedkit.mixture import Mixture, build_schedule, open_mixture, resolve_steps, stored_prompts
from embedkit.models import hub
from embedkit.models.embedder import Embedder
from embedkit.models.export import write_model
from embedkit.objectives.contrastive import ContrastiveObjective
from embedkit.prompts import instruction_prompts
from embedkit.recipe import Recipe, load_recipe
from embedkit.run_folder import RunFolder
from embedkit.trainer import Trainer


def finetune(
    recipe: Recipe | str | Path,
    output: str | Path | None = None,
    *,
    sources: Mapping[str, Records] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    allow_world_size_change: bool = False,
) -> Path:
    """Fine-tune an embedding model, evaluating it as the recipe says. Under torchrun, on all ranks.

    Args:
        recipe: a value, a name under ``recipes/``, or a path.
        output: the run's folder; by default ``runs/<recipe>``.
        sources: records by the names under which the recipe's mixture mentions them.
        resume: continue the newest whole checkpoint in ``output``.
        overwrite: replace the run in ``output``.
        allow_world_size_change: resume on another number of ranks, with other rounding.

    Returns:
        The exported model's folder, which ``SentenceTransformer`` opens without embedkit.

    Raises:
        UserError: recipe, data, model or folder are not as they should be.
        Interrupted: the run was asked to stop and has written a checkpoint.
    """
    path = Path(output) if output else default_output(recipe)
    run_folder.check(path, resume=resume, overwrite=overwrite)
    device = distributed.local_device()
    _be_deterministic(device)
    with distributed.group(device):
        console = Console(quiet=not distributed.is_main())
        run = _prepare(_as_recipe(recipe), sources, device, console)
        folder = distributed.on_main(
            partial(run_folder.claim, path, resume=resume, overwrite=overwrite)
        )
        measuring = Measuring(run.recipe.evaluation, folder, run.embedder, run.mixture)
        with _metrics(folder, run.recipe) as metrics:
            trainer = _trainer(run, folder, metrics, measuring)
            start = 0
            if resume:
                start = _restore(trainer, folder, run.facts, allow_world_size_change, console)
            distributed.on_main(partial(_begin, run, folder, metrics, start))
            measuring.before(start)
            trainer.fit(start)
        distributed.on_main(partial(_finish, run, folder, measuring, console))
    return folder.model


def evaluate(
    model: str | Path | Embedder,
    tasks: Sequence[str | Path] = (),
    output: str | Path = "results",
    *,
    benchmark: str | None = None,
    recipe: Recipe | str | Path | None = None,
    instructions: bool = True,
    dtype: str = "auto",
) -> Summary:
    """Score a model on mteb tasks; what is scored already in ``output`` is not scored again.

    Args:
        model: a hub id, a folder, ``package:<distribution>/<path>``, an alias, or a loaded model.
        tasks: names of mteb's tasks, and task folders or folders of them.
        output: where results and ``summary.json`` go.
        benchmark: a benchmark's name, such as ``MTEB(eng, v1)``.
        recipe: evaluate on what this recipe evaluates on.
        instructions: whether mteb's tasks get the paper's instructions (tables 8 and 9).
        dtype: ``auto`` (bf16 where native, else fp32), ``bf16``, ``fp16`` or ``fp32``.

    Raises:
        UserError: the model or a task does not exist, or a task folder is broken.
    """
    output = Path(output)
    device = distributed.local_device()
    folders = [Path(task) for task in tasks if Path(task).is_dir()]
    names = [str(task) for task in tasks if not Path(task).is_dir()]
    if recipe is None:
        selected = select_tasks(benchmark, names, folders)
    elif tasks or benchmark:
        raise UserError("recipe excludes tasks and benchmark: the recipe says what to evaluate on")
    else:
        selected = tasks_of(_as_recipe(recipe), output / "tasks")
    if not isinstance(model, Embedder):
        model = load(model, dtype=dtype)
    prefixes = instruction_prompts(task.metadata.name for task in selected) if instructions else {}
    kind = str(model.autocast or "float32").removeprefix("torch.")
    return score(model.to(device), selected, output, instructions=prefixes, dtype=kind)


def load(model: str | Path, *, dtype: str = "auto") -> Embedder:
    """Load an embedding model for use: on the GPU if there is one, else on the CPU.

    Raises:
        UserError: there is no such model, or it has parts that embedkit does not know.
    """
    device = distributed.local_device()
    return hub.load(str(model), autocast=precision.autocast_dtype(dtype, device), device=device)


def default_output(recipe: Recipe | str | Path) -> Path:
    """``runs/<recipe>``, by the recipe's name under ``recipes/`` or that of its file."""
    if isinstance(recipe, Recipe):
        return Path("runs/run")
    name = str(recipe)
    return Path("runs") / (Path(name).stem if name.endswith(".toml") else name)


def _as_recipe(recipe: Recipe | str | Path) -> Recipe:
    return recipe if isinstance(recipe, Recipe) else load_recipe(str(recipe))


@dataclass(frozen=True, slots=True)
class _Run:
    """What a run is made of, before it touches its folder."""

    recipe: Recipe
    mixture: Mixture
    embedder: Embedder
    batches: Batches
    facts: Mapping[str, object]


def _be_deterministic(device: torch.device) -> None:
    if device.type == "cuda":
        # Atomic additions in another order would make a resumed run another run.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)


def _prepare(
    recipe: Recipe, sources: Mapping[str, Records] | None, device: torch.device, console: Console
) -> _Run:
    """Open and check everything that a run reads, and say what it will do."""
    recipe, chosen = precision.resolve(recipe, device)
    check_tasks(recipe.evaluation)
    check_trackers(recipe.logging.trackers)
    mixture = open_mixture(recipe, sources)
    check_held_out(recipe.evaluation, mixture.manifests)
    recipe = resolve_steps(recipe, mixture)
    schedule = build_schedule(mixture, recipe)
    autocast = precision.autocast_dtype(recipe.precision, device)
    embedder = hub.load(recipe.model, settings=recipe.embedder, autocast=autocast, device=device)
    embedder.prompts |= stored_prompts(mixture.records)
    _check_lengths(recipe, mixture, embedder)
    facts = {
        "recipe": recipe.model_dump(mode="json"),
        "sources": mixture.fingerprints,
        "model": {"identity": embedder.identity},
        "world_size": distributed.world_size(),
        "threads": torch.get_num_threads(),
    }
    batches = Batches(schedule, mixture.records, embedder.tokenizer, recipe.data, seed=recipe.seed)
    console.print(report.overview(recipe, mixture, schedule, embedder, chosen))
    return _Run(recipe, mixture, embedder, batches, facts)


def _check_lengths(recipe: Recipe, mixture: Mixture, embedder: Embedder) -> None:
    limits = {
        "data.max_query_tokens": recipe.data.max_query_tokens,
        "data.max_document_tokens": recipe.data.max_document_tokens,
    }
    for records in mixture.records:
        limits[f"{records.name}: max_query_tokens"] = records.max_query_tokens or 0
        limits[f"{records.name}: max_document_tokens"] = records.max_document_tokens or 0
    for key, limit in limits.items():
        if limit > embedder.position_limit:
            raise UserError(
                f"{key} = {limit}: {recipe.model} reads at most {embedder.position_limit} tokens; "
                "set it to that or less"
            )


def _metrics(folder: RunFolder, recipe: Recipe) -> Metrics:
    config = recipe.model_dump(mode="json")
    names = recipe.logging.trackers if distributed.is_main() else ()
    return Metrics(folder.metrics, open_trackers(names, folder.path, config))


def _trainer(
    run: _Run, folder: RunFolder, metrics: Metrics, measuring: Measuring
) -> Trainer[ContrastiveBatch]:
    return Trainer(
        run.embedder,
        ContrastiveObjective(run.recipe.objective),
        partial(stream, run.batches, workers=run.recipe.data.workers),
        recipe=run.recipe,
        folder=folder.path,
        facts=run.facts,
        metrics=metrics,
        after_step=measuring.after_step,
    )


def _restore(
    trainer: Trainer[ContrastiveBatch],
    folder: RunFolder,
    facts: Mapping[str, object],
    allow_world_size_change: bool,
    console: Console,
) -> int:
    found, remarks = run_folder.newest_checkpoint(
        folder, facts, allow_world_size_change=allow_world_size_change
    )
    for remark in remarks:
        console.print(f"note: {remark}", highlight=False, markup=False, soft_wrap=True)
    if found is None:
        return 0
    trainer.restore(found)
    console.print(f"resuming after step {found.step}", highlight=False)
    return found.step


def _begin(run: _Run, folder: RunFolder, metrics: Metrics, start: int) -> None:
    run_folder.describe(folder, run.recipe, run.facts)
    metrics.cut(start)


def _finish(run: _Run, folder: RunFolder, measuring: Measuring, console: Console) -> None:
    """Export at once, so that the model is there whatever becomes of its evaluation."""
    card = partial(report.model_card, run.embedder, run.recipe, run.mixture)
    write_model(run.embedder, folder.model, card=card(None, None))
    console.print(f"model: {folder.model}", highlight=False, markup=False, soft_wrap=True)
    before, after = measuring.after()
    if after is None:
        return
    (folder.model / "README.md").write_text(card(before, after), encoding="utf-8")
    console.print(comparison(before, after) if before else after.table())
