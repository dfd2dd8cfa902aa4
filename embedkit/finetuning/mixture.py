"""Opens a recipe's mixture of pairs: records, weights, batch table, and the sampler over them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from embedkit import distributed
from embedkit.config import expand
from embedkit.data.batch_sampler import BatchSampler, Source, alpha_weights, steps_in
from embedkit.data.batch_table import BatchTable
from embedkit.data.manifests.manifest import Manifest, load_manifest
from embedkit.data.pairs.records import Records, open_records
from embedkit.data.pairs.validation_rows import divided
from embedkit.errors import ArgumentError, DataError, UserError, repeated
from embedkit.recipe import Recipe
from embedkit.recipe.training_settings import manifests_of, weights_of


@dataclass(frozen=True, slots=True)
class Mixture:
    """The sources of a run, in the order of the recipe."""

    records: tuple[Records, ...]
    sources: tuple[Source, ...]
    weights: Sequence[float]
    manifests: tuple[Manifest, ...]
    """Manifests of the sources, except for those given as ``Records``."""
    table: BatchTable | None = None
    """The recipe's ``data.batch_table``, once it is opened."""
    validation: tuple[Records, ...] = ()
    """The sources' rows that the run is validated on, which none of ``records`` has."""

    @property
    def shares(self) -> list[float]:
        """Expected share of the steps that read each source."""
        return [weight / sum(self.weights) for weight in self.weights]

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of the content of each source, and of the batch table."""
        table = {} if self.table is None else {"batch table": self.table.hash}
        validation = {f"validation: {each.name}": each.fingerprint for each in self.validation}
        return {records.name: records.fingerprint for records in self.records} | table | validation


def open_mixture(recipe: Recipe, given: Mapping[str, Records | Manifest] | None = None) -> Mixture:
    """Open every source of the recipe; a value of ``given`` stands for the manifest of its key.

    Raises:
        DataError: a source cannot be read, or ``validation.share`` holds out no row.
        UserError: ``given`` has a source that the recipe does not mention, or two sources would
            have one name.
    """
    given, held_out = given or {}, recipe.validation
    names = manifests_of(recipe.data.mix, given)
    opened = {
        name: source.renamed(name) for name, source in given.items() if isinstance(source, Records)
    }
    stated = {name: source for name, source in given.items() if isinstance(source, Manifest)}
    manifests = {
        name: stated.get(name) or load_manifest(name) for name in names if name not in opened
    }
    records = tuple(
        opened[name] if name in opened else open_records(manifests[name]) for name in names
    )
    if twice := repeated([source.name for source in records]):
        raise UserError(f"data.mix: two sources are called {', '.join(twice)}; rename one")
    validation: tuple[Records, ...] = ()
    if held_out is not None and held_out.share is not None:
        records, validation = divided(records, held_out.share)
    elif held_out is not None and held_out.records is not None:
        validation = (open_records(held_out.records),)
    sources = tuple(
        Source(source.name, len(source), batch_size_of(source.batch_size, recipe))
        for source in records
    )
    weights = weights_of(recipe.data.mix) or alpha_weights(sources, recipe.data.alpha)
    return Mixture(records, sources, weights, tuple(manifests.values()), validation=validation)


def batch_size_of(own: int | None, recipe: Recipe) -> int:
    """Return the number of pairs in a source's batch: its ``own``, but at most the recipe's.

    The recipe's is what fits into memory: a source may read fewer pairs at a time, and not more.
    """
    return min(own or recipe.data.batch_size, recipe.data.batch_size)


def open_batches(mixture: Mixture, recipe: Recipe) -> Mixture:
    """Return the mixture with the recipe's batch table; contextual batches are those of the table.

    Raises:
        DataError: there is no such table, or it was made of other rows or in other sizes.
    """
    if recipe.data.batch_table is None:
        return mixture
    table = BatchTable.open(expand(recipe.data.batch_table))
    contextual = recipe.data.batches == "contextual"
    # Shuffled batches only need the vectors, which do not depend on the size of batches.
    sizes = [
        source.batch_size if contextual else table[source.name].facts.batch_size
        for source in mixture.sources
    ]
    table.check(mixture.records, sizes)
    sources = mixture.sources
    if contextual:
        sources = tuple(replace(source, contextual=table[source.name]) for source in sources)
    return replace(mixture, sources=sources, table=table)


def build_batch_sampler(mixture: Mixture, recipe: Recipe, ranks: int | None = None) -> BatchSampler:
    """Return the sampler of a recipe whose ``steps`` are resolved; by default for all ranks.

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
        batches_per_step=_batches_per_step(recipe, ranks),
        seed=recipe.seed,
    )


def resolve_steps(recipe: Recipe, mixture: Mixture, ranks: int | None = None) -> Recipe:
    """Turn ``epochs`` into ``steps``: fewer if every rank reads batches of its own."""
    if recipe.epochs is None:
        return recipe
    per_step = _batches_per_step(recipe, ranks or distributed.world_size())
    steps = steps_in(recipe.epochs, mixture.sources, per_step)
    return recipe.model_copy(update={"steps": steps, "epochs": None})


def _batches_per_step(recipe: Recipe, ranks: int) -> int:
    """Return how many batches of one source all ranks together read in a step."""
    return recipe.optim.gradient_accumulation_steps * (ranks if recipe.batches_per_rank else 1)


@dataclass(frozen=True, slots=True)
class SourceShare:
    """Frequency with which a run reads one source."""

    source: Source
    expected: float
    """Share of the steps that the source may expect."""
    steps: int
    """Number of steps that read it."""
    drawn: float
    """Share of the steps that read it."""
    deviations: float
    """Distance of the drawn steps from the expected ones, in standard deviations."""
    passes: float
    """Number of times that all of its rows are read."""


def sampling_shares(
    recipe: Recipe, *, steps: int | None = None, rows: Mapping[str, int] | None = None
) -> list[SourceShare]:
    """Count how often the batch sampler of a recipe reads each source. No data is read.

    Args:
        recipe: the mixture, its weights and the seed.
        steps: length of the run; by default the recipe's.
        rows: numbers of rows of the sources whose manifests state none, by name.

    Raises:
        UserError: the rows of a source are neither stated nor given, or the recipe does not mix a
            source that ``rows`` names.
    """
    rows = rows or {}
    manifests = tuple(load_manifest(mix.manifest) for mix in recipe.data.mix)
    if unknown := sorted(set(rows) - {manifest.name for manifest in manifests}):
        reason = f"the recipe's data.mix has no source {', '.join(unknown)}"
        raise ArgumentError(("rows", reason))
    sources = []
    for manifest in manifests:
        name = manifest.name
        size = rows.get(name) or manifest.rows
        if size is None:
            raise UserError(f"{name}: its manifest states no rows: pass --rows {name}=ROWS")
        size = min(size, manifest.max_rows or size)
        if recipe.validation is not None and recipe.validation.share is not None:
            # The expected number: which rows are held out, their texts decide.
            size = round(size * (1 - recipe.validation.share))
        sources.append(Source(name, size, batch_size_of(manifest.batch_size, recipe)))
    weights = weights_of(recipe.data.mix) or alpha_weights(sources, recipe.data.alpha)
    mixture = Mixture((), tuple(sources), weights, manifests)
    if steps is not None:
        recipe = recipe.model_copy(update={"steps": steps, "epochs": None})
    recipe = resolve_steps(recipe, mixture, ranks=1)
    assert recipe.steps is not None
    sampler = build_batch_sampler(mixture, recipe, ranks=1)
    counts, passes = sampler.steps_of_sources(), sampler.passes()
    shares = []
    for source, expected, count, read in zip(sources, mixture.shares, counts, passes, strict=True):
        # A run of one source has no spread, and does not deviate.
        spread = (recipe.steps * expected * (1 - expected)) ** 0.5 or 1.0
        deviations = (count - recipe.steps * expected) / spread
        drawn = count / recipe.steps
        shares.append(SourceShare(source, expected, count, drawn, deviations, read))
    return shares
