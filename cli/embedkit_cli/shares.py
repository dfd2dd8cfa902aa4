"""``embedkit data shares``: how often a fine-tuning recipe's sampler reads each source."""

from typing import TYPE_CHECKING, Annotated

import typer

from embedkit.errors import UserError

if TYPE_CHECKING:
    from embedkit.data.batch_sampler import Source
    from embedkit.recipe import Recipe

RecipeName = Annotated[
    str, typer.Option("--recipe", help="A name under recipes/, without .toml, or a path.")
]
Steps = Annotated[int | None, typer.Option("--steps", min=1, help="Default: the recipe's.")]
Rows = Annotated[
    list[str],
    typer.Option("--rows", metavar="NAME=ROWS", help="Of a source whose manifest states none."),
]


def shares(recipe: RecipeName, steps: Steps = None, rows: Rows = []) -> None:
    """Print expected and drawn shares of the steps. Reads no data: rows are the manifests'."""
    from embedkit.data.batch_sampler import BatchSampler, alpha_weights, steps_in
    from embedkit.recipe import load_recipe

    resolved = load_recipe(recipe)
    sources = _sources(resolved, rows)
    steps = steps or resolved.steps
    if steps is None:
        assert resolved.epochs is not None
        steps = steps_in(resolved.epochs, sources, resolved.optim.gradient_accumulation_steps)
    explicit = [mix.weight for mix in resolved.data.mix if mix.weight is not None]
    weights = explicit or alpha_weights(sources, resolved.data.alpha)
    sampler = BatchSampler(
        sources,
        weights,
        steps=steps,
        batches_per_step=resolved.optim.gradient_accumulation_steps,
        seed=resolved.seed,
    )
    typer.echo("source\trows\tbatch\texpected\tdrawn\tsteps\tstandard deviations\tpasses")
    drawn = sampler.steps_of_sources()
    for source, weight, count, passes in zip(
        sources, weights, drawn, sampler.passes(), strict=True
    ):
        share = weight / sum(weights)
        deviation = (
            (count - steps * share) / (steps * share * (1 - share)) ** 0.5 if share < 1 else 0
        )
        typer.echo(
            f"{source.name}\t{source.rows:,}\t{source.batch_size}\t{share:.2%}\t{count / steps:.2%}"
            f"\t{count}\t{deviation:+.1f}\t{passes:.2f}"
        )


def _sources(recipe: "Recipe", given: list[str]) -> "list[Source]":
    from embedkit.data.batch_sampler import Source
    from embedkit.data.manifests.manifest import load_manifest

    told = dict(_told(each) for each in given)
    manifests = [load_manifest(mix.manifest) for mix in recipe.data.mix]
    if unknown := sorted(set(told) - {manifest.name for manifest in manifests}):
        raise UserError(f"--rows {', '.join(unknown)}: not in the recipe's data.mix")
    found = []
    for manifest in manifests:
        rows = told.get(manifest.name) or manifest.rows
        if rows is None:
            raise UserError(
                f"{manifest.name}: its manifest states no rows: pass --rows {manifest.name}=ROWS"
            )
        batch_size = manifest.batch_size or recipe.data.batch_size
        found.append(Source(manifest.name, rows, batch_size))
    return found


def _told(word: str) -> tuple[str, int]:
    name, equals, rows = word.partition("=")
    if not equals or not rows.isdigit() or int(rows) == 0:
        raise UserError(f"--rows {word}: write NAME=ROWS, e.g. gooaq=2000000")
    return name, int(rows)
