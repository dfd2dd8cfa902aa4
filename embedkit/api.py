"""A recipe in, objects built, work done: what the commands and the Python API call."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Unpack

from rich.console import Console

from embedkit import distributed
from embedkit.clustering import build
from embedkit.config import validated
from embedkit.data.batch_table import BatchTable
from embedkit.data.pairs.records import Records
from embedkit.data.text.texts import Texts
from embedkit.evaluation import evaluate as evaluating
from embedkit.evaluation.encoding.vector_cache import bytes_of
from embedkit.evaluation.evaluate import Contexts, TaskSelection
from embedkit.evaluation.mteb.estimate import Estimate
from embedkit.evaluation.summary import Summary
from embedkit.finetuning import run as finetuning
from embedkit.finetuning.mixture import open_mixture
from embedkit.models import hub, precision
from embedkit.models.contextual.model import Contextual
from embedkit.models.embedder import Embedder
from embedkit.pretraining import run as pretraining
from embedkit.recipe import PretrainRecipe, Recipe, Training, load_pretrain_recipe, load_recipe
from embedkit.training.run import run_training


def finetune(
    recipe: Recipe | str | Path,
    output: str | Path | None = None,
    *,
    sources: Mapping[str, Records] | None = None,
    objective: object | None = None,
    resume: bool = False,
    overwrite: bool = False,
    allow_world_size_change: bool = False,
) -> Path:
    """Fine-tune an embedding model, evaluating it as the recipe says. Under torchrun, on all ranks.

    Args:
        recipe: a value, a name under ``recipes/``, or a path; for another backbone than its own,
            ``load_recipe(name, ["model=..."])``.
        output: the run's folder; by default ``runs/<recipe>``.
        sources: records by the names under which the recipe's mixture mentions them.
        objective: a loss of one's own (docs/extending.md), if the recipe has no ``[objective]``.
        resume: continue the newest whole checkpoint in ``output``.
        overwrite: replace the run in ``output``.
        allow_world_size_change: resume on another number of ranks, with other rounding.

    Returns:
        The exported model's folder, which ``SentenceTransformer`` opens without embedkit.

    Raises:
        UserError: recipe, data, model or folder are not as they should be.
        Interrupted: the run was asked to stop and has written a checkpoint.
    """
    resolved = _as_recipe(recipe)
    if objective is not None:
        resolved = resolved.with_objective(objective)
    folder = run_training(
        partial(finetuning.prepare, resolved, sources),
        Path(output or default_output(recipe)),
        resume=resume,
        overwrite=overwrite,
        allow_world_size_change=allow_world_size_change,
    )
    return folder.model


def pretrain(
    recipe: PretrainRecipe | str | Path,
    output: str | Path | None = None,
    *,
    sources: Mapping[str, Texts] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    allow_world_size_change: bool = False,
) -> Path:
    """Pretrain a NeoBERT by masked language modelling. Under torchrun, on all ranks.

    Args:
        recipe: a value, a name under ``recipes/``, or a path.
        output: the run's folder; by default ``runs/<recipe>``.
        sources: texts by the names under which the recipe's mixture mentions them.
        resume: continue the newest whole checkpoint in ``output``.
        overwrite: replace the run in ``output``.
        allow_world_size_change: resume on another number of ranks, with other rounding.

    Returns:
        The folder of the model, which ``finetune`` takes as backbone and, once embedkit is
        imported, ``AutoModelForMaskedLM`` opens.

    Raises:
        UserError: recipe, data or folder are not as they should be.
        Interrupted: the run was asked to stop and has written a checkpoint.
    """
    resolved = recipe if isinstance(recipe, PretrainRecipe) else load_pretrain_recipe(str(recipe))
    folder = run_training(
        partial(pretraining.prepare, resolved, sources),
        Path(output or default_output(recipe)),
        resume=resume,
        overwrite=overwrite,
        allow_world_size_change=allow_world_size_change,
    )
    return folder.model


def evaluate(
    model: str | Path | Embedder | Contextual,
    tasks: Sequence[str | Path] = (),
    output: str | Path = "results",
    *,
    benchmark: str | None = None,
    recipe: Recipe | str | Path | None = None,
    instructions: bool = True,
    dtype: str = "auto",
    data_dir: str | Path | None = None,
    truncate_dim: int | None = None,
    cache_size: str | None = None,
    context_documents: int | None = None,
    context_seed: int | None = None,
) -> Summary:
    """Score a model on mteb tasks; what is scored already in ``output`` is not scored again.

    Under torchrun all ranks encode, and rank 0 alone writes.

    Args:
        model: a hub id, a folder, ``package:<distribution>/<path>``, an alias, or a loaded model.
        tasks: names of mteb's tasks, and task folders or folders of them.
        output: where results and ``summary.json`` go.
        benchmark: a benchmark's name, such as ``MTEB(eng, v1)``.
        recipe: evaluate on what this recipe evaluates on.
        instructions: whether mteb's tasks get the paper's instructions (tables 8 and 9).
        dtype: ``auto`` (bf16 where native, else fp32), ``bf16``, ``fp16`` or ``fp32``.
        data_dir: a mirror of hub repositories, which mteb's tasks read instead of the hub.
        truncate_dim: score the first dimensions of the vectors alone, at unit norm.
        cache_size: keep vectors under ``$EMBEDKIT_CACHE``, such as ``20GB`` of them, for what
            repeats and for a run that is begun again; ``None`` keeps none.
        context_documents: drawn from a task's corpus, which a contextual model reads before the
            task; by default as many as it has slots.
        context_seed: of that draw; 0 by default.

    Raises:
        UserError: the model or a task does not exist, or a task folder is broken; the model
            has fewer dimensions than ``truncate_dim``, or cannot read such a context.
    """
    room = bytes_of(cache_size) if cache_size is not None else None
    selection = _task_selection(tasks, benchmark, recipe, data_dir, instructions)
    device = distributed.local_device()
    with distributed.group(device):
        return evaluating.evaluate(
            _open(model, dtype).to(device),
            selection,
            Path(output),
            truncate_dim=truncate_dim,
            cache_bytes=room,
            contexts=Contexts(context_documents, context_seed),
        )


def estimate(
    model: str | Path | Embedder | Contextual,
    tasks: Sequence[str | Path] = (),
    *,
    benchmark: str | None = None,
    recipe: Recipe | str | Path | None = None,
    instructions: bool = True,
    dtype: str = "auto",
    data_dir: str | Path | None = None,
    context_documents: int | None = None,
    context_seed: int | None = None,
) -> Estimate:
    """What ``evaluate`` would encode with the same arguments, and how long; nothing is scored.

    Raises:
        UserError: the model or a task does not exist, or a task folder is broken; the model
            cannot read such a context.
    """
    selection = _task_selection(tasks, benchmark, recipe, data_dir, instructions)
    opened = _open(model, dtype).to(distributed.local_device())
    return evaluating.estimate(opened, selection, Contexts(context_documents, context_seed))


def cluster(
    recipe: Recipe | str | Path,
    output: str | Path,
    *,
    surrogate: str | Path | Embedder = build.SURROGATE,
    sources: Mapping[str, Records] | None = None,
    dtype: str = "auto",
    **options: Unpack[build.Options],
) -> BatchTable:
    """Cut every source of a recipe into batches of pairs that are near each other.

    Under torchrun, on all ranks. Run again after an interruption, it continues.

    Args:
        recipe: a value, a name under ``recipes/``, or a path; it says the mixture and batch sizes.
        output: a folder for the table, the surrogate's vectors and ``report.md``.
        surrogate: the model that says what is near: as for ``evaluate``.
        sources: records by the names under which the recipe's mixture mentions them.
        dtype: ``auto`` (bf16 where native, else fp32), ``bf16``, ``fp16`` or ``fp32``.
        options: the fields of ``embedkit.clustering.build.Settings``.

    Raises:
        UserError: recipe, data, surrogate or options are not as they should be, or ``output``
            holds something else.
    """
    settings = validated(build.Settings, options, "cluster")
    device = distributed.local_device()
    with distributed.group(device):
        console = Console(stderr=True, quiet=not distributed.is_main())
        mixture = open_mixture(_as_recipe(recipe), sources)
        model = surrogate if isinstance(surrogate, Embedder) else load(surrogate, dtype=dtype)
        sizes = [source.batch_size for source in mixture.sources]
        table = build.make(
            mixture.records, sizes, model.to(device), Path(output), settings, console
        )
        distributed.on_main(partial(build.report, table, Path(output), settings, console))
    return table


def load(model: str | Path, *, dtype: str = "auto") -> Embedder:
    """Load an embedding model for use: on the GPU if there is one, else on the CPU.

    Raises:
        UserError: there is no such model, or it has parts that embedkit does not know.
    """
    device = distributed.local_device()
    return hub.load(str(model), autocast=precision.autocast_dtype(dtype, device), device=device)


def default_output(recipe: Training | str | Path) -> Path:
    """``runs/<recipe>``, by the recipe's name under ``recipes/`` or that of its file."""
    if isinstance(recipe, Training):
        return Path("runs/run")
    name = str(recipe)
    return Path("runs") / (Path(name).stem if name.endswith(".toml") else name)


def _open(model: str | Path | Embedder | Contextual, dtype: str) -> Embedder | Contextual:
    if isinstance(model, Embedder | Contextual):
        return model
    return evaluating.load(str(model), dtype=dtype)


def _task_selection(
    tasks: Sequence[str | Path],
    benchmark: str | None,
    recipe: Recipe | str | Path | None,
    data_dir: str | Path | None,
    instructions: bool,
) -> TaskSelection:
    return TaskSelection(
        tasks,
        benchmark,
        None if recipe is None else _as_recipe(recipe),
        None if data_dir is None else Path(data_dir),
        instructions,
    )


def _as_recipe(recipe: Recipe | str | Path) -> Recipe:
    return recipe if isinstance(recipe, Recipe) else load_recipe(str(recipe))
