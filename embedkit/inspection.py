"""Looking at what a recipe will do, from a cold start."""

from collections.abc import Iterator

from embedkit.data.batches import Batches
from embedkit.errors import UserError
from embedkit.mixture import build_schedule, open_batches, open_mixture, resolve_steps
from embedkit.models import hub
from embedkit.recipe import Recipe


def texts_of_step(recipe: Recipe, step: int) -> Iterator[str]:
    """One line for every text of a step: a number for each pair, and which role the text plays.

    Raises:
        UserError: the recipe has no such step.
    """
    mixture = open_batches(open_mixture(recipe), recipe)
    recipe = resolve_steps(recipe, mixture)
    assert recipe.steps is not None
    if step >= recipe.steps:
        raise UserError(f"--step {step}: the recipe has {recipe.steps} steps, from 0")
    tokenizer = hub.load_tokenizer(recipe.model)
    batches = Batches(
        build_schedule(mixture, recipe), mixture.records, tokenizer, recipe.data, seed=recipe.seed
    )
    per_step = recipe.optim.accumulation
    for number in range(step * per_step, (step + 1) * per_step):
        texts = batches.texts(number)
        yield f"step {step}, batch {number - step * per_step}: {texts.source}"
        for row, query in enumerate(texts.queries):
            yield f"{row}\tquery\t{query}"
            for document, owner in enumerate(texts.owners):
                if owner == row:
                    role = "positive" if document == row else "negative"
                    yield f"{row}\t{role}\t{texts.documents[document]}"
