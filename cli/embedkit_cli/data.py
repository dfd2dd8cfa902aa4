"""``embedkit data``: look at sources, verify them, tokenize text, write held-out tasks."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from embedkit import api
from embedkit.errors import UserError
from embedkit_cli.command_line import Commands
from embedkit_cli.options import RECIPE_HELP, RecipeName, manifest_names, recipe_names

app = typer.Typer(cls=Commands, help="Look at, verify and prepare the sources of training text.")

_Manifests = partial(typer.Argument, autocompletion=manifest_names)
_Recipe = partial(typer.Option, "--recipe", autocompletion=recipe_names)

ManifestName = Annotated[
    str, _Manifests(metavar="NAME", help="A manifest: a name under data_manifests/, or a path.")
]
ManifestNames = Annotated[
    list[str],
    _Manifests(
        metavar="[NAME]...",
        help="Manifests by name or path; without any, all that come with embedkit.",
    ),
]
TextNames = Annotated[
    list[str],
    _Manifests(
        metavar="[NAME]...", help="Manifests of text: names under data_manifests/, or paths."
    ),
]
Model = Annotated[str, typer.Option(help="The model whose tokenizer counts the tokens.")]
Tokenizer = Annotated[
    str | None, typer.Option(help="The model whose tokenizer is used, if not the recipe's.")
]
VerifiedTokenizer = Annotated[
    str | None,
    typer.Option(help="Verify the token ids of text too, as this model's tokenizer makes them."),
]
CheckedRecipe = Annotated[
    str | None, _Recipe(help="Verify all sources of this recipe, in place of names.")
]
PreparedRecipe = Annotated[
    str | None, _Recipe(help="Prepare all sources of this recipe, in place of names.")
]
RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", autocompletion=recipe_names, help=RECIPE_HELP)
]
Output = Annotated[Path, typer.Option(help="The folder for the task folders.")]
MaxDocuments = Annotated[
    int | None,
    typer.Option(
        min=1, help="The largest number of documents of a corpus, if not what the recipe sets."
    ),
]
Workers = Annotated[
    int, typer.Option(min=1, help="The number of sources of pairs that are opened at a time.")
]
Sample = Annotated[
    int | None,
    typer.Option(
        min=1, help="The number of rows of each source of pairs to tokenize, if not all of them."
    ),
]
Steps = Annotated[
    int | None, typer.Option(min=1, help="The length of the run, if not the recipe's.")
]
Rows = Annotated[
    list[str],
    typer.Option(
        metavar="NAME=ROWS",
        help="The number of rows of a source whose manifest states none. May be repeated.",
    ),
]
Upgrade = Annotated[
    bool, typer.Option("--upgrade", help="Ask for newer commits of data sets that are pinned, too.")
]


@app.command("list")
def list_() -> None:
    """Print every source that comes with embedkit: name, kind, expected rows and licence."""
    for source in api.shipped_sources():
        typer.echo("\t".join((source.name, source.kind, source.rows, source.license)))


@app.command()
def show(name: ManifestName, model: Model = "starter") -> None:
    """Print what a source is, its first rows and how long its texts are."""
    _print(api.describe_source(name, model=model))


@app.command()
def check(
    names: ManifestNames = [], tokenizer: VerifiedTokenizer = None, recipe: CheckedRecipe = None
) -> None:
    """Open and verify sources, and print a line for each.

    If a source is not as it should be, the exit code is 1.
    """
    sound = True
    for source in api.check_sources(names, recipe=recipe, tokenizer=tokenizer):
        verdict = "ok" if source.sound else "failed"
        warnings = [f"warning: {warning}" for warning in source.warnings]
        typer.echo("\t".join((source.name, verdict, source.remark, *warnings)))
        sound = sound and source.sound
    if not sound:
        raise typer.Exit(1)


@app.command()
def prepare(
    names: TextNames = [],
    tokenizer: Tokenizer = None,
    recipe: PreparedRecipe = None,
    workers: Workers = 4,
    sample: Sample = None,
) -> None:
    """Tokenize sources of text for pretraining, or fetch and tokenize the pairs of a recipe.

    What is there already is only opened. Of text the token ids are kept, of pairs their lengths.
    """
    _print(
        api.prepare_data(names, tokenizer=tokenizer, recipe=recipe, workers=workers, sample=sample)
    )


@app.command()
def shares(recipe: RecipeName, steps: Steps = None, rows: Rows = []) -> None:
    """Print how often a recipe reads each source: the expected and the drawn share of the steps.

    No data is read: the manifests say how many rows there are.
    """
    given = dict(_name_and_rows(word) for word in rows)
    sources = api.sampling_shares(api.load_recipe(recipe), steps=steps, rows=given)
    typer.echo("source\trows\tbatch\texpected\tdrawn\tsteps\tstandard deviations\tpasses")
    for share in sources:
        source = share.source
        typer.echo(
            f"{source.name}\t{source.rows:,}\t{source.batch_size}\t{share.expected:.2%}"
            f"\t{share.drawn:.2%}\t{share.steps}\t{share.deviations:+.1f}\t{share.passes:.2f}"
        )


@app.command()
def lock(names: ManifestNames = [], upgrade: Upgrade = False) -> None:
    """Pin the data sets of the hub to their newest commits; this needs the hub."""
    for id_, commit in api.lock_sources(names, upgrade=upgrade).items():
        typer.echo(f"{commit}\t{id_}")


@app.command()
def tasks(recipe: RecipeArgument, output: Output, max_documents: MaxDocuments = None) -> None:
    """Write task folders of the concepts that a recipe's sources hold out."""
    for folder in api.write_held_out_tasks(recipe, output, max_documents=max_documents):
        typer.echo(folder)


def _print(tables: Iterable[object]) -> None:
    from rich.console import Console

    console = Console()
    for table in tables:
        console.print(table)


def _name_and_rows(word: str) -> tuple[str, int]:
    name, equals, rows = word.partition("=")
    if not equals or not rows.isdigit() or int(rows) == 0:
        raise UserError(f"--rows {word}: write NAME=ROWS, e.g. gooaq=2000000")
    return name, int(rows)
