"""A recipe's mixture, opened: records, weights, and the sampler over them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from embedkit import distributed
from embedkit.config import expand
from embedkit.data.batch_sampler import BatchSampler, Source, alpha_weights, steps_in
from embedkit.data.batch_table import BatchTable
from embedkit.data.manifests.manifest import Manifest, load_manifest
from embedkit.data.pairs.records import Records, open_manifest
from embedkit.errors import DataError, UserError
from embedkit.recipe import Recipe
from embedkit.tokens.prompts import SEARCH


@dataclass(frozen=True, slots=True)
class Mixture:
    """The sources of a run, in the order of the recipe."""

    records: tuple[Records, ...]
    sources: tuple[Source, ...]
    weights: tuple[float, ...]
    manifests: tuple[Manifest, ...]
    """Of the sources that come from one."""
    table: BatchTable | None = None
    """The recipe's ``data.batch_table``, once it is opened."""

    @property
    def shares(self) -> list[float]:
        """The share of the steps that each source may expect."""
        return [weight / sum(self.weights) for weight in self.weights]

    @property
    def fingerprints(self) -> dict[str, str]:
        table = {} if self.table is None else {"batch table": self.table.hash}
        return {each.name: each.fingerprint for each in self.records} | table


def open_mixture(recipe: Recipe, given: Mapping[str, Records] | None = None) -> Mixture:
    """Open every source of the recipe; a key of ``given`` stands in for a manifest of that name.

    Raises:
        DataError: a source cannot be read.
        UserError: ``given`` has a source that the recipe does not mention, or two sources would
            have one name.
    """
    given = given or {}
    names = [mix.manifest for mix in recipe.data.mix]
    if unknown := sorted(set(given) - set(names)):
        raise UserError(
            f"sources: {', '.join(unknown)} is not in the recipe's data.mix, which has "
            f"{', '.join(names)}"
        )
    manifests = {name: load_manifest(name) for name in names if name not in given}
    records = tuple(
        given[name].renamed(name) if name in given else open_manifest(manifests[name])
        for name in names
    )
    called = [each.name for each in records]
    if repeated := sorted({name for name in called if called.count(name) > 1}):
        raise UserError(f"data.mix: two sources are called {', '.join(repeated)}; rename one")
    sources = tuple(
        Source(each.name, len(each), each.batch_size or recipe.data.batch_size) for each in records
    )
    explicit = [mix.weight for mix in recipe.data.mix if mix.weight is not None]
    weights = explicit or alpha_weights(sources, recipe.data.alpha)
    return Mixture(records, sources, tuple(weights), tuple(manifests.values()))


def open_batches(mixture: Mixture, recipe: Recipe) -> Mixture:
    """The mixture with the recipe's batch table, and cut by it where batches are contextual.

    Raises:
        DataError: there is no such table, or it was made of other rows or in other sizes.
    """
    if recipe.data.batch_table is None:
        return mixture
    table = BatchTable.open(expand(recipe.data.batch_table))
    contextual = recipe.data.batches == "contextual"
    # Shuffled batches only need the vectors, and those are of rows, whatever the size.
    sizes = [
        source.batch_size if contextual else table[source.name].facts.batch_size
        for source in mixture.sources
    ]
    table.check(mixture.records, sizes)
    if not contextual:
        return replace(mixture, table=table)
    sources = tuple(replace(source, cut=table[source.name]) for source in mixture.sources)
    return replace(mixture, sources=sources, table=table)


def stored_prompts(records: Sequence[Records]) -> dict[str, str]:
    """The prompts of training as a model stores them, under sentence-transformers' names.

    ``query`` and ``document`` where all sources agree, and ``<source>-query``,
    ``<source>-document`` where they do not. Sources with the prefixes of several uses agree on
    none, but ``query`` and ``document`` are then those of a search.
    """
    prompts: dict[str, str] = {}
    for side, searched in SEARCH.items():
        by_source = {each.name: str(getattr(each.prompts, side)) for each in records}
        said = set(by_source.values())
        if len(said) == 1:
            prompts[side] = said.pop()
            continue
        prompts |= {f"{name}-{side}": prompt for name, prompt in by_source.items()}
        # Or a text would be read behind nothing, as none was in training.
        if searched in said:
            prompts[side] = searched
    return prompts


def build_batch_sampler(mixture: Mixture, recipe: Recipe, ranks: int | None = None) -> BatchSampler:
    """The schedule of a recipe whose ``steps`` are resolved, for so many ranks or those there are.

    Raises:
        DataError: a source has fewer rows than its batch, or its batch fewer than there are ranks
            to share it.
    """
    assert recipe.steps is not None
    ranks = ranks or distributed.world_size()
    for source in mixture.sources:
        if not recipe.batches_per_rank and source.smallest_batch < ranks:
            raise DataError(
                f"source {source.name} has batches of {source.smallest_batch}, fewer than the "
                f"{ranks} ranks: raise batch_size, leave the source out or start fewer ranks"
            )
    return BatchSampler(
        mixture.sources,
        mixture.weights,
        steps=recipe.steps,
        batches_per_step=batches_per_step(recipe, ranks),
        seed=recipe.seed,
    )


def batches_per_step(recipe: Recipe, ranks: int) -> int:
    """How many batches of one source all ranks together read in a step."""
    return recipe.optim.gradient_accumulation_steps * (ranks if recipe.batches_per_rank else 1)


def resolve_steps(recipe: Recipe, mixture: Mixture, ranks: int | None = None) -> Recipe:
    """Turn ``epochs`` into ``steps``: fewer where more ranks read batches of their own."""
    if recipe.epochs is None:
        return recipe
    per_step = batches_per_step(recipe, ranks or distributed.world_size())
    steps = steps_in(recipe.epochs, mixture.sources, per_step)
    return recipe.model_copy(update={"steps": steps, "epochs": None})
