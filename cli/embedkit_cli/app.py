"""The ``embedkit`` command: parses words, calls ``embedkit.api``, decides nothing itself."""

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from embedkit import api
from embedkit.errors import UserError
from embedkit_cli import data, own_data, recipes
from embedkit_cli.blend import blend
from embedkit_cli.cluster import cluster
from embedkit_cli.command_line import Commands
from embedkit_cli.compare import compare
from embedkit_cli.deploy_check import deploy_check
from embedkit_cli.evaluate import eval_mteb
from embedkit_cli.export import export
from embedkit_cli.failures import failures
from embedkit_cli.inspect import inspect
from embedkit_cli.interruption import print_how_to_resume
from embedkit_cli.mine import mine
from embedkit_cli.options import (
    RECIPE_HELP,
    Overrides,
    RecipeName,
    is_main,
    recipe_names,
    with_options,
)
from embedkit_cli.perplexity import eval_perplexity

app = typer.Typer(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")

Output = Annotated[
    Path | None, typer.Option(help="The folder of the run; runs/<recipe> if it is not given.")
]
MaybeRecipe = Annotated[str | None, typer.Option(autocompletion=recipe_names, help=RECIPE_HELP)]
Data = Annotated[
    str | None, typer.Option("--data", help=f"In place of a recipe: {own_data.DATA_HELP}")
]
Backbone = Annotated[
    str | None,
    typer.Option(
        "--backbone",
        "--model",
        metavar="MODEL",
        help="Train this encoder instead of the recipe's: a folder, a hub id, or starter.",
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue from the newest checkpoint in the output.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run in the output.")]
AllowWorldSizeChange = Annotated[
    bool,
    typer.Option(
        "--allow-world-size-change",
        help="Resume even if the number of ranks has changed, which rounds otherwise.",
    ),
]


def _print_versions(asked: bool) -> None:
    if not asked:
        return
    for package, version in api.versions_of(api.STACK).items():
        typer.echo(f"{package} {version}")
    raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_versions,
            is_eager=True,
            help="Print the versions of embedkit and of the libraries it stands on, and exit.",
        ),
    ] = False,
) -> None:
    """Train and evaluate text embedding models, from raw text to a measured model."""


app.command()(inspect)


@app.command()
def pretrain(
    recipe: RecipeName,
    output: Output = None,
    overrides: Overrides = [],
    resume: Resume = False,
    overwrite: Overwrite = False,
    allow_world_size_change: AllowWorldSizeChange = False,
) -> None:
    """Pretrain a NeoBERT by masked language modelling.

    Under torchrun the command runs on every rank.
    """
    with print_how_to_resume():
        api.pretrain(
            api.load_pretrain_recipe(recipe, overrides),
            output or api.default_output(recipe),
            resume=resume,
            overwrite=overwrite,
            allow_world_size_change=allow_world_size_change,
        )


@app.command()
@with_options(api.Shortcuts)
def finetune(
    recipe: MaybeRecipe = None,
    data_: Data = None,
    output: Output = None,
    backbone: Backbone = None,
    column: own_data.Column = [],
    ignore: own_data.Ignore = [],
    overrides: Overrides = [],
    resume: Resume = False,
    overwrite: Overwrite = False,
    allow_world_size_change: AllowWorldSizeChange = False,
    **shortcuts: Any,
) -> None:
    """Fine-tune an embedding model on pairs, and evaluate it as the recipe says.

    With --data in place of --recipe, a recipe is chosen for the pairs, and its settings are printed
    with their reasons. Under torchrun the command runs on every rank.
    """
    overrides = [*overrides, *api.from_arguments(api.Shortcuts, shortcuts).overrides()]
    resolved, own = None, own_data.options(backbone, column, ignore, overrides)
    if recipe is not None:
        # The name is quoted, since the value of an override is TOML.
        model = [f"model={json.dumps(backbone)}"] if backbone is not None else []
        resolved = api.load_recipe(recipe, [*overrides, *model])
        output = output or api.default_output(recipe)
        # The recipe has the model and the overrides already.
        own = own_data.options(None, column, ignore, [])
    with print_how_to_resume():
        api.finetune(
            resolved,
            output,
            data=data_,
            **own,
            resume=resume,
            overwrite=overwrite,
            allow_world_size_change=allow_world_size_change,
        )


_COMMANDS: tuple[Callable[..., None], ...] = (
    *(own_data.init, mine, cluster, eval_mteb, eval_perplexity, compare, failures, export),
    *(blend, deploy_check),
    *(recipes.recipes, recipes.show, recipes.batch, recipes.explain, recipes.schema),
)
for command in _COMMANDS:
    app.command()(command)


def main() -> None:
    """Run the command; a user's mistake is one line and exit code 2."""
    _shorten_warnings()
    try:
        app()
    except UserError as error:
        _print_mistake(" ".join(str(error).split()))
        sys.exit(2)
    except Exception:
        if "RANK" in os.environ:
            _end_after_another_rank()
        raise


def _print_mistake(mistake: str) -> None:
    """Print a mistake, with the rank if it is not rank 0; ranks with the same one print it once."""
    if "RANK" in os.environ:
        from embedkit import distributed

        if not distributed.reports_first(mistake):
            return
    rank = "" if is_main() else f"rank {os.environ['RANK']}: "
    sys.stderr.write(f"error: {rank}{mistake}\n")


def _end_after_another_rank() -> None:
    """End quietly if another rank has failed before, which is why this one fails."""
    from embedkit import distributed

    if not distributed.fails_first():
        # Meanwhile torchrun ends this rank, and reports the one that failed first.
        time.sleep(distributed.PATIENCE)
        sys.exit(1)


def _shorten_warnings() -> None:
    """Print a warning to the user in one line, without the code that warns."""
    whole = warnings.formatwarning

    def formatted(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> str:
        if category is not UserWarning:
            return whole(message, category, *place, **more)
        return f"warning: {' '.join(str(message).split())}\n"

    warnings.formatwarning = formatted
