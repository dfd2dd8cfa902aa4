"""Prints the texts that a recipe reads in one step, without training."""

from collections.abc import Iterator, Sequence

from embedkit import distributed, rng
from embedkit.data.pairs.contrastive_batches import Batches, BatchTexts
from embedkit.errors import ArgumentError
from embedkit.finetuning.mixture import (
    build_batch_sampler,
    open_batches,
    open_mixture,
    resolve_steps,
)
from embedkit.models import hub
from embedkit.objectives.contextual import context_rows
from embedkit.recipe import Recipe


def texts_of_step(recipe: Recipe, step: int, ranks: int = 1) -> Iterator[str]:
    """Yield a line for every text of a step: the number of its pair, its role and the text.

    For a model of two stages, the documents of its context follow, by the numbers of their pairs.

    Args:
        recipe: recipe of the run.
        step: number of the step, from 0.
        ranks: number of ranks of the run.

    Raises:
        UserError: the recipe has no such step.
    """
    mixture = open_batches(open_mixture(recipe), recipe)
    recipe = resolve_steps(recipe, mixture, ranks)
    assert recipe.steps is not None
    if step >= recipe.steps:
        reason = f"the recipe has {recipe.steps} steps, which are counted from 0 (got {step})"
        raise ArgumentError(("step", reason))
    tokenizer = hub.load_tokenizer(recipe.model)
    sampler = build_batch_sampler(mixture, recipe, ranks)
    batches = Batches(sampler, mixture.records, tokenizer, recipe.data, seed=recipe.seed)
    # Each group of ranks shares one batch.
    groups = [[rank] for rank in range(ranks)] if recipe.batches_per_rank else [[*range(ranks)]]
    per_step = recipe.optim.gradient_accumulation_steps
    for micro in range(per_step):
        for number, group in enumerate(groups):
            texts = batches.texts((step * per_step + micro) * len(groups) + number)
            where = f"rank {number}, " if len(groups) > 1 else ""
            yield f"step {step}, {where}batch {micro}: {texts.source}"
            yield from _pairs(texts)
            if recipe.context is not None:
                for rank in group:
                    key = rng.fold_in(recipe.seed, "step", step, micro, rank)
                    yield from _context(recipe.context.num_context, texts, key, rank, group)


def _pairs(texts: BatchTexts) -> Iterator[str]:
    for row, query in enumerate(texts.queries):
        yield f"{row}\tquery\t{query}"
        for document, owner in enumerate(texts.owners):
            if owner == row:
                role = "positive" if document == row else "negative"
                yield f"{row}\t{role}\t{texts.documents[document]}"


def _context(
    slots: int, texts: BatchTexts, key: int, rank: int, group: Sequence[int]
) -> Iterator[str]:
    """Yield the context that a rank's texts read: documents of the pairs that the rank holds."""
    part = distributed.share_of(len(texts.queries), group.index(rank), len(group))
    pairs = range(len(texts.queries))[part]
    held = [document for document, owner in enumerate(texts.owners) if owner in pairs]
    role = f"context of rank {rank}" if len(group) > 1 else "context"
    for row in context_rows(len(held), slots, key).tolist():
        yield f"{texts.owners[held[row]]}\t{role}\t{texts.documents[held[row]]}"
