"""``embedkit recipes``, ``show``, ``batch``, ``explain`` and ``schema``: recipes and their keys."""

import json
from typing import Annotated

import typer

from embedkit import api
from embedkit_cli.options import Overrides, RecipeName, recipe_names

Recipes = Annotated[
    list[str],
    typer.Argument(
        metavar="RECIPE...",
        autocompletion=recipe_names,
        help="One or two names that embedkit recipes prints, or paths; two are compared.",
    ),
]
Step = Annotated[int, typer.Option(min=0, help="The step to look at; the first one is 0.")]
Ranks = Annotated[int, typer.Option(min=1, help="The number of ranks that the run has.")]
Key = Annotated[
    str, typer.Argument(metavar="KEY", help="A dotted key of recipes, such as optim.lr.")
]
Kind = Annotated[api.SchemaKind, typer.Argument(metavar="[KIND]", help="The kind of file.")]


def recipes() -> None:
    """Print every recipe that comes with embedkit: its name and what it is for."""
    for name, purpose in api.shipped_recipes():
        typer.echo(f"{name}\t{purpose}")


def show(recipes: Recipes, overrides: Overrides = []) -> None:
    """Print a recipe with every default filled in, or what differs between two recipes."""
    typer.echo(api.show_recipes(recipes, overrides), nl=False)


def batch(recipe: RecipeName, step: Step, ranks: Ranks = 1, overrides: Overrides = []) -> None:
    """Print the texts of one training step with their prompts, as the model will see them."""
    for line in api.texts_of_step(api.load_recipe(recipe, overrides), step, ranks):
        typer.echo(line)


def explain(key: Key) -> None:
    """Explain a key of recipes: type, default, meaning, and its value in the papers' recipes."""
    typer.echo(api.explain(key), nl=False)


def schema(kind: Kind = "recipe") -> None:
    """Print the JSON schema of recipes or manifests, by which editors complete and check them."""
    typer.echo(json.dumps(api.json_schema(kind), indent=2, ensure_ascii=False))
