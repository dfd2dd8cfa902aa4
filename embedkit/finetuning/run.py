"""A fine-tuning run: opens and checks everything that its recipe names."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from embedkit import distributed, rng
from embedkit.data.loading import stream
from embedkit.data.manifests.readers import READERS
from embedkit.data.pairs.contrastive_batches import Batches, ContrastiveBatch
from embedkit.data.pairs.records import Records
from embedkit.data.vector_store import VectorStore
from embedkit.errors import DataError
from embedkit.evaluation.recipe_tasks import check_held_out, check_tasks
from embedkit.evaluation.summary import Summary, comparison
from embedkit.finetuning import model as starting_model
from embedkit.finetuning import overview
from embedkit.finetuning.evaluator import Evaluator
from embedkit.finetuning.mixture import (
    Mixture,
    build_batch_sampler,
    open_batches,
    open_mixture,
    resolve_steps,
    stored_prompts,
)
from embedkit.finetuning.model_card import model_card
from embedkit.models import lora, precision
from embedkit.models.contextual.model import Contextual
from embedkit.models.embedder import Embedder
from embedkit.models.pooling import identity_of_pooling
from embedkit.recipe import Recipe
from embedkit.recipe.pair_objectives import OBJECTIVES
from embedkit.storage.folders import rewrite
from embedkit.tokens.prompts import SEARCH, benchmark_prompts
from embedkit.training.metrics import check_trackers
from embedkit.training.run_folder import RunFolder
from embedkit.training.trainer import TrainingJob


def prepare(
    recipe: Recipe,
    sources: Mapping[str, Records] | None,
    folder: RunFolder,
    device: torch.device,
    console: Console,
) -> TrainingJob[ContrastiveBatch]:
    """Open and check everything that a run reads, and print what it will do."""
    recipe, chosen = precision.resolve(recipe, device)
    objective = recipe.objective.build()
    check_tasks(recipe.evaluation)
    check_trackers(recipe.logging.trackers)
    # Before the data, which may be gigabytes to fetch.
    autocast = precision.autocast_dtype(recipe.precision, device)
    model = starting_model.load(recipe, autocast=autocast, device=device)
    mixture = open_batches(open_mixture(recipe, sources), recipe)
    _check_scores(recipe, mixture)
    check_held_out(recipe.evaluation, mixture.manifests)
    recipe = resolve_steps(recipe, mixture)
    sampler = build_batch_sampler(mixture, recipe)
    _replace_prompts(model, stored_prompts(mixture.records))
    if recipe.embedder.benchmark_prompts:
        model.prompts |= benchmark_prompts()
    starting_model.check_lengths(recipe, _limits(mixture), model)
    _check_slots(recipe, mixture)
    facts = _facts(recipe, mixture, model)
    # Adapters come after the facts, whose model is the backbone that training starts from.
    if recipe.lora:
        lora.attach(model, recipe.lora, seed=rng.fold_in(recipe.seed, "lora"))
    batches = Batches(
        sampler,
        mixture.records,
        model.tokenizer,
        recipe.data,
        seed=recipe.seed,
        batches_per_rank=recipe.batches_per_rank,
        vectors=_vectors(recipe, mixture),
    )
    console.print(overview.overview(recipe, mixture, sampler, model, chosen))
    for remark in overview.remarks(recipe):
        console.print(f"note: {remark}", soft_wrap=True)
    evaluator = Evaluator(recipe.evaluation, folder, model, mixture)
    card = partial(model_card, model, recipe, mixture)
    return TrainingJob(
        recipe=recipe,
        facts=facts,
        model=model,
        objective=objective,
        batches=lambda numbers: stream(batches, numbers, recipe.data.workers),
        evaluator=evaluator,
        finish=partial(_finish, model, card, folder.model, evaluator, console),
    )


def _finish(
    model: Embedder | Contextual,
    card: Callable[[Summary | None, Summary | None], str],
    folder: Path,
    evaluator: Evaluator,
    console: Console,
) -> None:
    # Adapters are merged first, so that the model evaluated is the model exported.
    lora.merge(model)
    # The model is exported before its evaluation, which may fail.
    distributed.on_main(lambda: model.save(folder, card=card(None, None)))
    console.print(f"model: {folder}", soft_wrap=True)
    before, after = evaluator.after()
    if after is not None:
        distributed.on_main(lambda: rewrite(folder, "README.md", card(before, after)))
        console.print(comparison(before, after) if before else after.table())


def _replace_prompts(model: Embedder | Contextual, trained: Mapping[str, str]) -> None:
    """Give a model the prompts of its training, and leave it none of a side that trains without."""
    kept = {name: each for name, each in model.prompts.items() if name not in SEARCH}
    model.prompts = {**kept, **trained}
    if model.default_prompt_name not in model.prompts:
        model.default_prompt_name = None


def _check_scores(recipe: Recipe, mixture: Mixture) -> None:
    """See that sources have scores if the loss goes by them, and none if it does not.

    Raises:
        DataError: names a source that is otherwise.
    """
    kind, needed = recipe.objective.kind, recipe.objective.needs.scores
    for records in mixture.records:
        if needed and not records.has_scores:
            raise DataError(
                f'source {records.name}: has no scores, and objective.kind = "{kind}" goes by '
                "them: name their column in columns.score, or leave the source out"
            )
        if records.has_scores and not needed:
            raise DataError(
                f"source {records.name}: columns.score names scores, and objective.kind = "
                f'"{kind}" does not go by any: list their column in ignore instead, or train with '
                "a loss that does"
            )


def _check_slots(recipe: Recipe, mixture: Mixture) -> None:
    """See that a batch can fill a context, where no null vector stands in for what is missing.

    Raises:
        DataError: names a source whose batches cannot.
    """
    if recipe.context is None or recipe.context.null_vector:
        return
    slots, ranks = recipe.context.num_context, distributed.world_size()
    for source, records in zip(mixture.sources, mixture.records, strict=True):
        own = source.smallest_batch // (1 if recipe.batches_per_rank else ranks)
        documents = own * (1 + records.negatives_per_query)
        if documents < slots:
            raise DataError(
                f"source {source.name}: a rank reads {documents} documents at a time, fewer than "
                f"context.num_context = {slots}, and the model has no null vector to fill up "
                "with: raise batch_size, or leave the source out"
            )


def _facts(recipe: Recipe, mixture: Mixture, model: Embedder | Contextual) -> dict[str, object]:
    """What decides whether another run is the same one."""
    return {
        "recipe": recipe.model_dump(mode="json"),
        "sources": mixture.fingerprints,
        "model": {"identity": model.identity},
        "extensions": _extensions(recipe, mixture, model),
        "world_size": distributed.world_size(),
        "batches_per_rank": recipe.batches_per_rank,
        "threads": torch.get_num_threads(),
    }


def _extensions(recipe: Recipe, mixture: Mixture, model: Embedder | Contextual) -> dict[str, str]:
    """Return the identities of what other distributions bring to a run, by its part in it."""
    identities = {"objective": OBJECTIVES.identity_of(recipe.objective)}
    if isinstance(model, Embedder):
        identities["pooling"] = identity_of_pooling(model.pooling)
    for manifest in mixture.manifests:
        if reader := getattr(manifest.source, "reader", None):
            identities[f"reader of {manifest.name}"] = READERS.identity_of(reader)
    return {part: identity for part, identity in identities.items() if identity}


def _vectors(recipe: Recipe, mixture: Mixture) -> list[VectorStore]:
    """The surrogate's, of every source, if negatives are filtered by them."""
    if not recipe.objective.needs.surrogate_vectors:
        return []
    assert mixture.table is not None
    return [mixture.table[each.name].vectors for each in mixture.records]


def _limits(mixture: Mixture) -> dict[str, int]:
    """The lengths of texts that sources set themselves."""
    sides = ("max_query_tokens", "max_document_tokens")
    return {
        f"{each.name}: {side}": getattr(each.description, side) or 0
        for each in mixture.records
        for side in sides
    }
