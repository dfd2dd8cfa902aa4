"""A recipe in, objects built, work done: what the commands and the Python API call."""

from collections.abc import Mapping, Sequence
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
from embedkit.measuring import Measuring, tasks_of
from embedkit.metrics import Metrics, open_trackers
from embedkit.mixture import Mixture, build_schedule, open_mixture, resolve_steps, stored_prompts
from embedkit.models import hub
from embedkit.models.embedder import Embedder
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
    path = Path(output) if output else Path("runs") / _name(recipe)
    recipe = _as_recipe(recipe)
    run_folder.check(path, resume=resume, overwrite=overwrite)
    device = distributed.local_device()
    with distributed.group(device):
        console = Console(quiet=not distributed.is_main())
        recipe, chosen = precision.resolve(recipe, device)
        mixture = open_mixture(recipe, sources)
        recipe = resolve_steps(recipe, mixture)
        embedder = _load(recipe, mixture, device)
        schedule = build_schedule(mixture, recipe)
        batches = Batches(
            schedule, mixture.records, embedder.tokenizer, recipe.data, seed=recipe.seed
        )
        facts = {
            "recipe": recipe.model_dump(mode="json"),
            "sources": mixture.fingerprints,
            "model": {"identity": embedder.identity},
            "world_size": distributed.world_size(),
            "threads": torch.get_num_threads(),
        }
        folder = distributed.on_main(
            partial(run_folder.claim, path, resume=resume, overwrite=overwrite)
        )
        console.print(report.overview(recipe, mixture, schedule, embedder, chosen))
        measuring = Measuring(recipe.evaluation, folder, embedder, mixture)
        metrics = _metrics(folder, recipe)
        trainer = Trainer(
            embedder,
            ContrastiveObjective(recipe.objective),
            partial(stream, batches, workers=recipe.data.workers),
            recipe=recipe,
            folder=folder.path,
            facts=facts,
            metrics=metrics,
            after_step=measuring.after_step,
        )
        start = 0
        if resume:
            start = _restore(trainer, folder, facts, allow_world_size_change, console)
        distributed.on_main(partial(_begin, folder, metrics, recipe, facts, start))
        measuring.before(start)
        trainer.fit(start)
        distributed.on_main(partial(_finish, folder, embedder, recipe, mixture, measuring, console))
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


def _name(recipe: Recipe | str | Path) -> str:
    return "run" if isinstance(recipe, Recipe) else str(recipe).removesuffix(".toml")


def _as_recipe(recipe: Recipe | str | Path) -> Recipe:
    return recipe if isinstance(recipe, Recipe) else load_recipe(str(recipe))


def _load(recipe: Recipe, mixture: Mixture, device: torch.device) -> Embedder:
    autocast = precision.autocast_dtype(recipe.precision, device)
    embedder = hub.load(recipe.model, settings=recipe.embedder, autocast=autocast, device=device)
    embedder.prompts |= stored_prompts(mixture.records)
    return embedder


def _metrics(folder: RunFolder, recipe: Recipe) -> Metrics:
    if not distributed.is_main():
        return Metrics(folder.metrics, [])
    config = recipe.model_dump(mode="json")
    return Metrics(folder.metrics, open_trackers(recipe.logging.trackers, folder.path, config))


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
        console.print(f"note: {remark}", highlight=False)
    if found is None:
        return 0
    trainer.restore(found)
    console.print(f"resuming after step {found.step}", highlight=False)
    return found.step


def _begin(
    folder: RunFolder, metrics: Metrics, recipe: Recipe, facts: Mapping[str, object], start: int
) -> None:
    run_folder.describe(folder, recipe, facts)
    metrics.cut(start)


def _finish(
    folder: RunFolder,
    embedder: Embedder,
    recipe: Recipe,
    mixture: Mixture,
    measuring: Measuring,
    console: Console,
) -> None:
    """Export at once, so that the model is there whatever becomes of its evaluation."""
    hub.export(
        embedder, folder.model, card=report.model_card(embedder, recipe, mixture, None, None)
    )
    console.print(f"model: {folder.model}", highlight=False)
    before, after = measuring.after()
    if after is None:
        return
    card = report.model_card(embedder, recipe, mixture, before, after)
    (folder.model / "README.md").write_text(card, encoding="utf-8")
    console.print(comparison(before, after) if before else after.table())
