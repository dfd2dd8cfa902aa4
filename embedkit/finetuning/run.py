"""A fine-tuning run: opens and checks everything that its recipe names."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from embedkit import distributed
from embedkit.data.loading import stream
from embedkit.data.manifests.manifest import Manifest
from embedkit.data.manifests.sources import READERS
from embedkit.data.pairs.contrastive_batches import Batches, ContrastiveBatch
from embedkit.data.pairs.records import Records
from embedkit.distributed.progress import show
from embedkit.errors import DataError
from embedkit.evaluation.comparing.comparison import remarks_on
from embedkit.evaluation.failures.verdict import verdict
from embedkit.evaluation.mteb import reach
from embedkit.evaluation.mteb.task_selection import check_held_out, known_tasks
from embedkit.evaluation.summary import comparison
from embedkit.finetuning import model as starting_model
from embedkit.finetuning.evaluator import Evaluator
from embedkit.finetuning.mixture import (
    Mixture,
    build_batch_sampler,
    open_batches,
    open_mixture,
    resolve_steps,
)
from embedkit.finetuning.model_card import model_card
from embedkit.finetuning.negatives import check_negatives, remarks_on_negatives
from embedkit.finetuning.overview import overview, remarks, remarks_on_prompts
from embedkit.finetuning.own_data import OwnOptions, plan
from embedkit.finetuning.validator import Validator, described
from embedkit.models import lora, precision
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.models.pooling import identity_of_pooling
from embedkit.recipe import Recipe
from embedkit.recipe.pair_objectives import OBJECTIVES
from embedkit.storage.folders import rewrite
from embedkit.training.interfaces import Stop
from embedkit.training.metrics import check_trackers
from embedkit.training.trainer import TrainingJob


def prepare_own(
    data: str | Path, options: OwnOptions, folder: Path, device: torch.device
) -> TrainingJob[ContrastiveBatch]:
    """Choose a recipe and a manifest for own data, print them with the reasons, and prepare."""
    own = plan(data, folder, **options)
    distributed.on_main(lambda: show(own.table()))
    job = prepare(own.recipe, {own.recipe.data.mix[0].manifest: own.manifest}, folder, device)
    return replace(job, files=own.files)


def prepare(
    recipe: Recipe,
    sources: Mapping[str, Records | Manifest] | None,
    folder: Path,
    device: torch.device,
) -> TrainingJob[ContrastiveBatch]:
    """Open and check everything that a run reads, and print what it will do."""
    recipe, chosen = precision.resolve(recipe, device)
    objective = recipe.objective.build()
    # Errors come before the data are read, which may take hours.
    tasks = known_tasks(recipe.evaluation)
    within_reach = distributed.on_main(lambda: reach.report(tasks, recipe.evaluation.mirror))
    check_trackers(recipe.logging.trackers)
    # The model is loaded before the data, which may be gigabytes to fetch.
    autocast = precision.autocast_dtype(recipe.precision, device)
    model = starting_model.load(recipe, autocast=autocast, device=device)
    unit_norm = starting_model.scale_to_unit_norm(model)
    mixture = open_batches(open_mixture(recipe, sources), recipe)
    _check_scores(recipe, mixture)
    check_negatives(recipe, mixture)
    check_held_out(recipe.evaluation, mixture.manifests, tasks)
    recipe = resolve_steps(recipe, mixture)
    sampler = build_batch_sampler(mixture, recipe)
    on_default = starting_model.set_prompts(recipe, mixture.records, model)
    starting_model.check_lengths(recipe, (*mixture.records, *mixture.validation), model)
    _check_slots(recipe, mixture)
    facts = {
        "sources": mixture.fingerprints,
        "model": {"identity": model.identity},
        "extensions": _extensions(recipe, mixture, model),
        "batches_per_rank": recipe.batches_per_rank,
    }
    # Adapters come after the facts, whose model is the backbone that training starts from.
    starting_model.choose_trained_weights(recipe, model)
    table = mixture.table if recipe.objective.needs.surrogate_vectors else None
    batches = Batches(
        sampler,
        mixture.records,
        model.tokenizer,
        recipe.data,
        seed=recipe.seed,
        batches_per_rank=recipe.batches_per_rank,
        vectors=[table[source.name].vectors for source in mixture.sources] if table else [],
        known_answers=recipe.objective.needs.known_answers,
    )
    for records in mixture.records:
        show(records.summary)
    distributed.on_main(lambda: show(overview(recipe, mixture, sampler, model, chosen)))
    if within_reach:
        show(within_reach)
    _show_notes(recipe, mixture, model, unit_norm, on_default)
    validator = None
    if recipe.validation is not None:
        validator = Validator(recipe, model, mixture, folder)
        show(described(mixture, recipe.validation))
    evaluator = Evaluator(recipe.evaluation, folder / "eval", model, mixture, validator)
    return TrainingJob(
        recipe=recipe,
        facts=facts,
        model=model,
        objective=objective,
        batches=lambda numbers: stream(batches, numbers, recipe.data.workers),
        evaluator=evaluator,
        finish=partial(_finish, model, recipe, mixture, folder, evaluator),
    )


def _show_notes(
    recipe: Recipe,
    mixture: Mixture,
    model: EmbeddingModel,
    unit_norm: str | None,
    on_default: str | None,
) -> None:
    """Print what the run does and its user may not have meant."""
    on_prompts = (on_default, *remarks_on_prompts(model, mixture.records))
    on_negatives = remarks_on_negatives(recipe, mixture)
    for remark in filter(None, (unit_norm, *remarks(recipe), *on_negatives, *on_prompts)):
        show(f"note: {remark}")


def _finish(
    model: EmbeddingModel,
    recipe: Recipe,
    mixture: Mixture,
    folder: Path,
    evaluator: Evaluator,
    stop: Stop,
) -> bool:
    best = None
    if evaluator.validator is not None:
        best = evaluator.validator.choose(stop)
        if best is None:
            return False
    # Adapters are merged first, so that the model evaluated is the model exported.
    lora.merge(model)
    # The model is exported before its evaluation, which may fail.
    exported, card = (
        folder / "model",
        partial(model_card, folder.resolve().name, model, recipe, mixture, best),
    )
    distributed.on_main(lambda: model.save(exported, card=card(None, None)))
    if best is not None:
        show(f"exported: {best}")
    show(f"model: {exported}")
    before, after = evaluator.after(stop)
    if after is None:
        return True
    distributed.on_main(lambda: rewrite(exported, "README.md", card(before, after)))
    show(comparison(before, after) if before else after.table())
    changed = remarks_on(before, after) if before else []
    for line in (*changed, *after.prompts(), *after.reasons()):
        show(line)
    if recipe.evaluation.verdict and before:
        for line in verdict(folder / "eval" / "before", folder / "eval" / "after"):
            show(line)
        show(f"all changed queries: embedkit failures {folder}/eval/before {folder}")
        show(f"where the model opens: embedkit deploy-check --model {exported}")
    if after.is_complete and after.missing:
        show(f"to score them: {_command_to_score(folder)}")
    return after.is_complete


def _command_to_score(folder: Path) -> str:
    """Return the command that scores the exported model as its run does, and keeps its scores."""
    words = ["--model", f"{folder}/model", "--recipe", f"{folder}/recipe.toml"]
    return shlex.join(["embedkit", "eval-mteb", *words, "--output", f"{folder}/eval/after"])


def _check_scores(recipe: Recipe, mixture: Mixture) -> None:
    """Verify that sources have scores if and only if the loss uses them, and negatives only if."""
    kind, needs = recipe.objective.kind, recipe.objective.needs
    for records in (*mixture.records, *mixture.validation):
        if needs.scores and not records.has_scores:
            raise DataError(
                f'source {records.name}: has no scores, and objective.kind = "{kind}" goes by '
                "them: name their column in columns.score, or leave the source out"
            )
        if records.has_scores and not needs.scores:
            (score,) = records.description.columns.paths()["score"]
            raise DataError(
                f"source {records.name}: columns.score names scores, and objective.kind = "
                f'"{kind}" would train every pair as a positive: train with objective.kind = '
                f'"cosent"; or set negative_below, under which pairs become hard negatives; or '
                f"take columns.score out and keep the pairs that match by a filter such as "
                f'"{score} > 4", or list {score!r} in ignore'
            )
        if needs.teacher and not (records.has_teacher and records.negatives_per_query):
            raise DataError(
                f'source {records.name}: objective.kind = "{kind}" needs hard negatives and a '
                "teacher's scores of the positive and of each negative: name the scores' columns "
                "in columns.scores, or leave the source out"
            )
        if records.has_teacher and not needs.teacher:
            raise DataError(
                f"source {records.name}: columns.scores names a teacher's scores, and "
                f'objective.kind = "{kind}" does not use them: train with objective.kind = '
                '"distill", or take columns.scores out and list the columns in ignore'
            )
        if not needs.hard_negatives and records.negatives_per_query:
            raise DataError(
                f"source {records.name}: has hard negatives, which objective.kind = "
                f'"{kind}" does not use: set ignore = ["negatives"], negatives_per_query = 0, or '
                "train with another loss"
            )


def _check_slots(recipe: Recipe, mixture: Mixture) -> None:
    """Verify that a batch can fill a context if no null vector fills empty slots."""
    if recipe.context is None or recipe.context.null_vector:
        return
    slots, ranks = recipe.context.num_context, distributed.world_size()
    for source, records in zip(mixture.sources, mixture.records, strict=True):
        queries = source.smallest_batch // (1 if recipe.batches_per_rank else ranks)
        documents = queries * (1 + records.negatives_per_query)
        if documents < slots:
            raise DataError(
                f"source {source.name}: a rank reads {documents} documents at a time, fewer than "
                f"context.num_context = {slots}, and the model has no null vector to fill up "
                "with: raise batch_size, or leave the source out"
            )


def _extensions(recipe: Recipe, mixture: Mixture, model: EmbeddingModel) -> dict[str, str]:
    """Return the identities of what other distributions bring to a run, by its part in it."""
    identities = {
        "objective": OBJECTIVES.identity_of(recipe.objective),
        "pooling": identity_of_pooling(model.pooling),
    }
    for manifest in mixture.manifests:
        if reader := getattr(manifest.source, "reader", None):
            identities[f"reader of {manifest.name}"] = READERS.identity_of(reader)
    return {part: identity for part, identity in identities.items() if identity}
