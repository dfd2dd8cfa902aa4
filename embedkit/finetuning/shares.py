"""How often the sampler of a recipe reads each source, from the manifests alone."""

from collections.abc import Mapping
from dataclasses import dataclass

from embedkit.data.batch_sampler import BatchSampler, Source, alpha_weights, steps_in
from embedkit.data.manifests.manifest import load_manifest
from embedkit.errors import ArgumentError, UserError
from embedkit.recipe import Recipe


@dataclass(frozen=True, slots=True)
class SourceShare:
    """How often one source is read."""

    source: str
    rows: int
    batch_size: int
    expected: float
    """Share of the steps that the source may expect."""
    steps: int
    """Number of steps that read it."""
    drawn: float
    """Share of the steps that read it."""
    deviations: float
    """Distance of the drawn steps from the expected ones, in standard deviations."""
    passes: float
    """How often all of its rows are read."""


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
    sources = _sources(recipe, rows or {})
    per_step = recipe.optim.gradient_accumulation_steps
    steps = steps or recipe.steps
    if steps is None:
        assert recipe.epochs is not None
        steps = steps_in(recipe.epochs, sources, per_step)
    explicit = [mix.weight for mix in recipe.data.mix if mix.weight is not None]
    weights = explicit or alpha_weights(sources, recipe.data.alpha)
    sampler = BatchSampler(
        sources, weights, steps=steps, batches_per_step=per_step, seed=recipe.seed
    )
    counts, passes = sampler.steps_of_sources(), sampler.passes()
    return [
        _share(source, weight / sum(weights), count, steps, read)
        for source, weight, count, read in zip(sources, weights, counts, passes, strict=True)
    ]


def _share(source: Source, expected: float, count: int, steps: int, passes: float) -> SourceShare:
    spread = (steps * expected * (1 - expected)) ** 0.5
    return SourceShare(
        source=source.name,
        rows=source.rows,
        batch_size=source.batch_size,
        expected=expected,
        steps=count,
        drawn=count / steps,
        deviations=(count - steps * expected) / spread if expected < 1 else 0.0,
        passes=passes,
    )


def _sources(recipe: Recipe, given: Mapping[str, int]) -> list[Source]:
    manifests = [load_manifest(mix.manifest) for mix in recipe.data.mix]
    if unknown := sorted(set(given) - {manifest.name for manifest in manifests}):
        reason = f"the recipe's data.mix has no source {', '.join(unknown)}"
        raise ArgumentError(("rows", reason))
    sources = []
    for manifest in manifests:
        rows = given.get(manifest.name) or manifest.rows
        if rows is None:
            raise UserError(
                f"{manifest.name}: its manifest states no rows: pass --rows {manifest.name}=ROWS"
            )
        batch_size = manifest.batch_size or recipe.data.batch_size
        sources.append(Source(manifest.name, rows, batch_size))
    return sources
