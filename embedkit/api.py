"""The functions that the commands and the Python API call: a recipe in, objects built, work done.

Modules that import torch are imported when a function is called, so that this one loads at once.
"""

# mypy: implicit-reexport
# ruff: noqa: F401
from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedkit.clustering.settings import SURROGATE, ClusteringOptions, ClusteringSettings
from embedkit.config import from_arguments
from embedkit.data.manifests.json_schema import SchemaKind, json_schema
from embedkit.errors import ArgumentError, DataError, UserError
from embedkit.evaluation.settings import (
    ComparisonFormat,
    ComparisonSettings,
    EvaluationSettings,
    FailuresFormat,
    FailuresSettings,
    PerplexitySettings,
)
from embedkit.mining.settings import MiningSettings
from embedkit.models.settings import ExportTarget
from embedkit.recipe import (
    PretrainRecipe,
    Recipe,
    Shortcuts,
    as_recipe,
    default_output,
    explain,
    shipped_recipes,
    show_recipes,
)
from embedkit.recipe.load_recipes import load_any_recipe, load_pretrain_recipe, load_recipe
from embedkit.storage.folders import check_writable
from embedkit.storage.versions import STACK, versions_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Unpack

    from rich.table import Table

    from embedkit.data.batch_table import BatchTable
    from embedkit.data.inspect_data import Inspection
    from embedkit.data.inspect_sources import SourceCheck, shipped_sources
    from embedkit.data.manifests.hub_lock import lock_sources
    from embedkit.data.pairs.records import Records
    from embedkit.data.text.texts import Texts
    from embedkit.evaluation.comparing.comparison import compare
    from embedkit.evaluation.comparing.formatting import format_comparison
    from embedkit.evaluation.evaluate import estimate, evaluate, verify
    from embedkit.evaluation.failures.changes import failures
    from embedkit.evaluation.failures.formatting import format_failures
    from embedkit.evaluation.mteb.task_selection import write_held_out_tasks
    from embedkit.evaluation.perplexity.pseudo_perplexity import evaluate_perplexity
    from embedkit.evaluation.summary import EvaluationInterrupted
    from embedkit.finetuning.blend import blend, parse_shares
    from embedkit.finetuning.mixture import sampling_shares
    from embedkit.finetuning.own_data import OwnOptions, init
    from embedkit.finetuning.show_batch import texts_of_step
    from embedkit.mining.mine_source import mine
    from embedkit.models.deploy_check import deploy_check
    from embedkit.models.embedding_model import EmbeddingModel
    from embedkit.models.export import export
    from embedkit.models.load import load
    from embedkit.training.trainer import Interrupted

_HOMES = {
    "BatchTable": "data.batch_table",
    "shipped_sources": "data.inspect_sources",
    "lock_sources": "data.manifests.hub_lock",
    "Records": "data.pairs.records",
    "Texts": "data.text.texts",
    "compare": "evaluation.comparing.comparison",
    "format_comparison": "evaluation.comparing.formatting",
    "estimate": "evaluation.evaluate",
    "evaluate": "evaluation.evaluate",
    "failures": "evaluation.failures.changes",
    "format_failures": "evaluation.failures.formatting",
    "verify": "evaluation.evaluate",
    "evaluate_perplexity": "evaluation.perplexity.pseudo_perplexity",
    "write_held_out_tasks": "evaluation.mteb.task_selection",
    "blend": "finetuning.blend",
    "parse_shares": "finetuning.blend",
    "sampling_shares": "finetuning.mixture",
    "init": "finetuning.own_data",
    "texts_of_step": "finetuning.show_batch",
    "mine": "mining.mine_source",
    "deploy_check": "models.deploy_check",
    "export": "models.export",
    "load": "models.load",
    "EvaluationInterrupted": "evaluation.summary",
    "Interrupted": "training.trainer",
}
"""Modules of names that are imported when first asked for, since they import numpy or torch."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"embedkit.{_HOMES[name]}"), name)


def finetune(
    recipe: Recipe | str | Path | None = None,
    output: str | Path | None = None,
    *,
    data: str | Path | None = None,
    sources: Mapping[str, Records] | None = None,
    objective: object | None = None,
    resume: bool = False,
    overwrite: bool = False,
    allow_world_size_change: bool = False,
    **own: Unpack[OwnOptions],
) -> Path:
    """Fine-tune an embedding model, evaluating it as the recipe says. Under torchrun, on all ranks.

    Args:
        recipe: a value, a name under ``recipes/``, or a path; for another backbone than its own,
            ``load_recipe(name, ["model=..."])``.
        output: the run's folder; by default ``runs/<recipe>`` or ``runs/<data>``.
        data: pairs of one's own, in place of a recipe, which is then chosen for them: a file, a
            folder of files or of ``datasets``, or the hub id of a data set.
        sources: records by the names under which the recipe's mixture mentions them.
        objective: a loss of one's own (docs/extending.md), if the recipe has no ``[objective]``.
        resume: continue the newest whole checkpoint in ``output``.
        overwrite: replace the run in ``output``.
        allow_world_size_change: resume on another number of ranks, with other rounding.
        own: with ``data``, the ``model`` to train; ``columns``, the names of columns by the part
            that they play; names of columns to ``ignore``; ``overrides`` of the recipe.

    Returns:
        The exported model's folder, which ``SentenceTransformer`` opens without embedkit.

    Raises:
        UserError: recipe, data, model or folder are not as they should be.
        Interrupted: the run was asked to stop; it has written a checkpoint if it took a step.
    """
    from embedkit.finetuning.own_data import name_of
    from embedkit.finetuning.run import prepare, prepare_own
    from embedkit.training.trainer import run_training

    if (recipe is None) == (data is None):
        raise UserError("finetune takes a recipe (--recipe) or own data (--data), one of them")
    if data is not None and (sources is not None or objective is not None):
        raise UserError("sources and objective go with a recipe, not with data")
    if recipe is not None and own:
        raise UserError(f"{', '.join(own)}: goes with data, and a recipe has keys for it")
    if data is not None:
        job, folder = partial(prepare_own, data, own), Path("runs") / name_of(str(data))
    else:
        assert recipe is not None
        resolved = as_recipe(recipe)
        if objective is not None:
            resolved = resolved.with_objective(objective)
        job, folder = partial(prepare, resolved, sources), default_output(recipe)
    return run_training(
        job,
        Path(output or folder),
        resume=resume,
        overwrite=overwrite,
        allow_world_size_change=allow_world_size_change,
    )


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
        The folder of the model, which ``finetune`` takes as backbone and, once
        ``embedkit.models.neobert`` is imported, ``AutoModelForMaskedLM`` opens.

    Raises:
        UserError: recipe, data or folder are not as they should be.
        Interrupted: the run was asked to stop; it has written a checkpoint if it took a step.
    """
    from embedkit.pretraining.run import prepare
    from embedkit.training.trainer import run_training

    resolved = recipe if isinstance(recipe, PretrainRecipe) else load_pretrain_recipe(str(recipe))
    return run_training(
        partial(prepare, resolved, sources),
        Path(output or default_output(recipe)),
        resume=resume,
        overwrite=overwrite,
        allow_world_size_change=allow_world_size_change,
    )


def cluster(
    recipe: Recipe | str | Path,
    output: str | Path,
    *,
    surrogate: str | Path | EmbeddingModel | None = None,
    sources: Mapping[str, Records] | None = None,
    **options: Unpack[ClusteringOptions],
) -> BatchTable:
    """Divide every source of a recipe into batches of pairs that are near each other.

    Under torchrun, on all ranks. Run again after an interruption, it continues.

    Args:
        recipe: a value, a name under ``recipes/``, or a path; it says the mixture and batch sizes.
        output: the folder for the table, the surrogate's vectors and ``report.md``.
        surrogate: the model that says what is near: as for ``evaluate``, by default ``SURROGATE``.
        sources: records by the names under which the recipe's mixture mentions them.
        options: the fields of ``embedkit.ClusteringSettings``, with the defaults they have there.

    Raises:
        UserError: recipe, data, surrogate or options are not as they should be, or ``output``
            cannot be written or holds something else.
    """
    from embedkit import distributed
    from embedkit.clustering import build
    from embedkit.finetuning.mixture import open_mixture
    from embedkit.models.load import one_stage

    settings = from_arguments(ClusteringSettings, options)
    check_writable(Path(output))
    device = distributed.local_device()
    with distributed.group(device):
        mixture = open_mixture(as_recipe(recipe), sources)
        model = one_stage(surrogate or SURROGATE, dtype=settings.dtype, purpose="cluster")
        sizes = [source.batch_size for source in mixture.sources]
        table = build.make(mixture.records, sizes, model, Path(output), settings)
        distributed.on_main(partial(build.report, table, Path(output), settings))
    return table


def describe_source(name: str, *, model: str = "starter") -> Iterator[Table]:
    """Return tables of what a source is, its first rows, and its lengths by a model's tokenizer."""
    from embedkit.data.inspect_sources import describe
    from embedkit.models.hub import load_tokenizer

    return describe(name, load_tokenizer(model), model)


def inspect(
    data: str | Path,
    *,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    ignore: Sequence[str] = (),
    model: str = "starter",
) -> Inspection:
    """Read pairs of your own, and say what each column became and what is odd about the rows.

    Args:
        data: a file, a folder of files or one that ``datasets`` saved, or ``org/name`` of the hub.
        columns: columns that are not to be recognised by their names, by their parts.
        ignore: names of columns that play no part.
        model: model whose tokenizer counts the tokens.

    Returns:
        The inspection: as text it is one line; ``tables()`` yields tables for a rich console.

    Raises:
        UserError: the data cannot be read, or two columns could play one part.
    """
    from embedkit.data.inspect_data import inspect
    from embedkit.models.hub import load_tokenizer

    return inspect(data, load_tokenizer(model), model, columns=columns, ignore=ignore)


def check_sources(
    names: Sequence[str] = (), *, recipe: str | None = None, tokenizer: str | None = None
) -> Iterator[SourceCheck]:
    """Open and verify sources one after the other; one that is not sound stops no other.

    Args:
        names: names of manifests, or their paths; by default all that come with embedkit.
        recipe: recipe whose sources are all checked, in place of ``names``.
        tokenizer: model whose tokenizer makes the token ids of text, which are verified too.
    """
    from embedkit.data.inspect_sources import check, chosen
    from embedkit.models.hub import load_tokenizer

    return check(chosen(names, recipe), load_tokenizer(tokenizer) if tokenizer else None)


def prepare_data(
    names: Sequence[str] = (),
    *,
    tokenizer: str | None = None,
    recipe: str | None = None,
    workers: int = 4,
    sample: int | None = None,
) -> Iterator[Table]:
    """Tokenize text for pretraining, or fetch, verify and tokenize pairs; yield tables of it all.

    Args:
        names: names of manifests of text, or their paths; they need ``tokenizer``.
        tokenizer: model whose tokenizer is used; by default the recipe's.
        recipe: recipe whose sources are all prepared, in place of ``names``.
        workers: number of sources of pairs that are opened at a time.
        sample: number of rows of each source of pairs that are tokenized; by default all.
    """
    from embedkit.data.text.texts import Texts
    from embedkit.finetuning.prepare_pairs import prepare_pairs
    from embedkit.pretraining.mixture import texts_of
    from embedkit.pretraining.prepare_texts import prepare_texts

    if recipe and not names:
        resolved = load_any_recipe(recipe)
        if isinstance(resolved, Recipe):
            model = tokenizer or resolved.model
            return prepare_pairs(resolved, model, workers=workers, sample=sample)
        tokenizer = tokenizer or resolved.model.tokenizer
        texts = list(texts_of(resolved).values())
    elif names and tokenizer and not recipe:
        texts = [Texts.from_manifest(name) for name in names]
    else:
        raise UserError("data prepare takes NAME... and --tokenizer, or --recipe alone")
    if sample is not None:
        raise ArgumentError(("sample", f"text is tokenized whole; leave it out (got {sample})"))
    return prepare_texts(texts, tokenizer)
