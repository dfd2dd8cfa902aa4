"""Looking at what a recipe will do, from a cold start."""

from collections.abc import Iterator, Sequence

from embedkit import distributed, rng
from embedkit.data.pairs.contrastive_batches import Batches, Texts
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
    """One line for every text of a step: a number for each pair, and which role the text plays.

    A model of two stages also reads a context: its documents follow, by the numbers that their
    pairs have.

    Args:
        recipe: what is to be trained.
        step: from 0.
        ranks: of the run.

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
    apart = ranks if recipe.batches_per_rank else 1
    for micro in range(recipe.optim.gradient_accumulation_steps):
        for own in range(apart):
            texts = batches.texts(
                (step * recipe.optim.gradient_accumulation_steps + micro) * apart + own
            )
            where = f"rank {own}, " if apart > 1 else ""
            yield f"step {step}, {where}batch {micro}: {texts.source}"
            yield from _pairs(texts)
            sharing = [own] if recipe.batches_per_rank else range(ranks)
            for rank in sharing:
                key = rng.fold_in(recipe.seed, "step", step, micro, rank)
                yield from _context(recipe, texts, key, rank, sharing)


def _pairs(texts: Texts) -> Iterator[str]:
    for row, query in enumerate(texts.queries):
        yield f"{row}\tquery\t{query}"
        for document, owner in enumerate(texts.owners):
            if owner == row:
                role = "positive" if document == row else "negative"
                yield f"{row}\t{role}\t{texts.documents[document]}"


def _context(
    recipe: Recipe, texts: Texts, key: int, rank: int, sharing: Sequence[int]
) -> Iterator[str]:
    """What a rank's texts read, of the documents that it holds."""
    if recipe.context is None:
        return
    part = distributed.share_of(len(texts.queries), sharing.index(rank), len(sharing))
    pairs = range(len(texts.queries))[part]
    held = [row for row, owner in enumerate(texts.owners) if owner in pairs]
    role = f"context of rank {rank}" if len(sharing) > 1 else "context"
    for place in context_rows(len(held), recipe.context.num_context, key).tolist():
        yield f"{texts.owners[held[place]]}\t{role}\t{texts.documents[held[place]]}"
