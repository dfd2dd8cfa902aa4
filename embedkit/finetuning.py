"""A contrastive run: what its recipe names, opened and checked."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from rich.console import Console

from embedkit import distributed, keyed, precision, report
from embedkit.clustering.vectors import VectorStore
from embedkit.data.batches import Batches, ContrastiveBatch
from embedkit.data.loading import stream
from embedkit.data.records import Records
from embedkit.errors import UserError
from embedkit.evaluation.summary import comparison
from embedkit.measuring import Measuring, check_held_out, check_tasks
from embedkit.metrics import check_trackers
from embedkit.mixture import (
    Mixture,
    build_schedule,
    open_batches,
    open_mixture,
    resolve_steps,
    stored_prompts,
)
from embedkit.models import hub, lora
from embedkit.models.embedder import Embedder
from embedkit.models.export import write_model
from embedkit.objectives.contrastive import ContrastiveObjective
from embedkit.recipe import Recipe
from embedkit.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class Finetuning:
    """A fine-tuning run, before it touches its folder."""

    recipe: Recipe
    mixture: Mixture
    model: Embedder
    tokenized: Batches
    facts: Mapping[str, object]
    console: Console
    peak: float | None = None

    @property
    def objective(self) -> ContrastiveObjective:
        return ContrastiveObjective(self.recipe.objective)

    def batches(self, numbers: range) -> Iterator[ContrastiveBatch]:
        return stream(self.tokenized, numbers, self.recipe.data.workers)

    def measuring(self, folder: RunFolder) -> Measuring:
        return Measuring(self.recipe.evaluation, folder, self.model, self.mixture)

    def finish(self, folder: RunFolder, measuring: Measuring) -> None:
        distributed.on_main(partial(self._finish, folder, measuring))

    def _finish(self, folder: RunFolder, measuring: Measuring) -> None:
        """Export at once, so that the model is there whatever becomes of its evaluation."""
        # What is evaluated is what is exported.
        lora.merge(self.model.backbone.model)
        card = partial(report.model_card, self.model, self.recipe, self.mixture)
        write_model(self.model, folder.model, card=card(None, None))
        line = f"model: {folder.model}"
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)
        before, after = measuring.after()
        if after is None:
            return
        (folder.model / "README.md").write_text(card(before, after), encoding="utf-8")
        self.console.print(comparison(before, after) if before else after.table())


def prepare(
    recipe: Recipe, sources: Mapping[str, Records] | None, device: torch.device, console: Console
) -> Finetuning:
    """Open and check everything that a run reads, and say what it will do."""
    recipe, chosen = precision.resolve(recipe, device)
    check_tasks(recipe.evaluation)
    check_trackers(recipe.logging.trackers)
    # Before the data, which may be gigabytes to fetch.
    autocast = precision.autocast_dtype(recipe.precision, device)
    embedder = hub.load(recipe.model, settings=recipe.embedder, autocast=autocast, device=device)
    network = embedder.backbone.model
    _check_dims(recipe, embedder)
    if recipe.lora:
        lora.check(network, recipe.lora)
    mixture = open_batches(open_mixture(recipe, sources), recipe)
    check_held_out(recipe.evaluation, mixture.manifests)
    recipe = resolve_steps(recipe, mixture)
    schedule = build_schedule(mixture, recipe)
    embedder.prompts |= stored_prompts(mixture.records)
    _check_lengths(recipe, mixture, embedder)
    facts = {
        "recipe": recipe.model_dump(mode="json"),
        "sources": mixture.fingerprints,
        "model": {"identity": embedder.identity},
        "world_size": distributed.world_size(),
        "threads": torch.get_num_threads(),
    }
    # Behind the facts, in which a model is the backbone that it starts from.
    if recipe.lora:
        lora.attach(network, recipe.lora, seed=keyed.key(recipe.seed, "lora"))
    batches = Batches(
        schedule,
        mixture.records,
        embedder.tokenizer,
        recipe.data,
        seed=recipe.seed,
        vectors=_vectors(recipe, mixture),
    )
    console.print(report.overview(recipe, mixture, schedule, embedder, chosen))
    return Finetuning(recipe, mixture, embedder, batches, facts, console)


def _vectors(recipe: Recipe, mixture: Mixture) -> list[VectorStore]:
    """The surrogate's, of every source, if negatives are filtered by them."""
    if recipe.objective.false_negatives == "off":
        return []
    assert mixture.table is not None
    return [mixture.table[each.name].vectors for each in mixture.records]


def _check_dims(recipe: Recipe, embedder: Embedder) -> None:
    widest, width = max(recipe.objective.matryoshka_dims or (1,)), embedder.backbone.width
    if widest > width:
        raise UserError(
            f"objective.matryoshka_dims: {widest} is more than the {width} dimensions of "
            f"{recipe.model}; begin with {width}"
        )


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
