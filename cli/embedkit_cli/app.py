"""The ``embedkit`` command: parses words, calls ``embedkit.api``, decides nothing itself."""

import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from embedkit.errors import UserError
from embedkit_cli import data
from embedkit_cli.cluster import cluster
from embedkit_cli.compare import compare
from embedkit_cli.evaluate import eval_mteb
from embedkit_cli.export import export
from embedkit_cli.mine import mine
from embedkit_cli.perplexity import eval_perplexity

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="From raw text to a measured embedding model.",
)
app.add_typer(data.app, name="data")
app.command()(cluster)
app.command()(compare)
app.command("eval-mteb")(eval_mteb)
app.command("eval-perplexity")(eval_perplexity)
app.command("export")(export)
app.command()(mine)

RecipeName = Annotated[
    str, typer.Option("--recipe", help="A name under recipes/, without .toml, or a path.")
]
Output = Annotated[Path | None, typer.Option("--output", help="Default: runs/<recipe>.")]
Overrides = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Override one value, e.g. optim.lr=3e-5."),
]
Backbone = Annotated[
    str | None,
    typer.Option(
        "--backbone",
        metavar="MODEL",
        help="Train this encoder instead of the recipe's: a folder, a hub id, or starter.",
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue the newest checkpoint in the output.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run in the output.")]
AllowWorldSizeChange = Annotated[
    bool, typer.Option("--allow-world-size-change", help="Resume on another number of ranks.")
]


@app.command()
def pretrain(
    recipe: RecipeName,
    output: Output = None,
    overrides: Overrides = [],
    resume: Resume = False,
    overwrite: Overwrite = False,
    allow_world_size_change: AllowWorldSizeChange = False,
) -> None:
    """Pretrain a NeoBERT by masked language modelling. Under torchrun, on every rank it starts."""
    from embedkit import api
    from embedkit.recipe import load_pretrain_recipe

    with _told_when_interrupted():
        api.pretrain(
            load_pretrain_recipe(recipe, overrides),
            output or api.default_output(recipe),
            resume=resume,
            overwrite=overwrite,
            allow_world_size_change=allow_world_size_change,
        )


@app.command()
def finetune(
    recipe: RecipeName,
    output: Output = None,
    backbone: Backbone = None,
    overrides: Overrides = [],
    resume: Resume = False,
    overwrite: Overwrite = False,
    allow_world_size_change: AllowWorldSizeChange = False,
) -> None:
    """Fine-tune an embedding model. Under torchrun, on every rank it starts."""
    from embedkit import api
    from embedkit.recipe import load_recipe

    # Quoted, since the value of an override is TOML.
    model = [f"model={json.dumps(backbone)}"] if backbone else []
    with _told_when_interrupted():
        api.finetune(
            load_recipe(recipe, [*overrides, *model]),
            output or api.default_output(recipe),
            resume=resume,
            overwrite=overwrite,
            allow_world_size_change=allow_world_size_change,
        )


@app.command()
def show(
    recipes: Annotated[list[str], typer.Argument(help="Names or paths; two are compared.")],
    overrides: Overrides = [],
) -> None:
    """Print a recipe with every default filled in, or what differs between two."""
    import tomli_w

    from embedkit.config import differences
    from embedkit.recipe import load_any_recipe

    tables = [
        load_any_recipe(name, overrides).model_dump(mode="json", exclude_none=True)
        for name in recipes
    ]
    if len(tables) == 1:
        typer.echo(tomli_w.dumps(tables[0]), nl=False)
        return
    if len(tables) > 2:
        raise UserError(f"show takes one recipe, or two to compare, not {len(tables)}")
    for line in differences(tables[0], tables[1]):
        typer.echo(line)


@app.command()
def batch(
    recipe: RecipeName,
    step: Annotated[int, typer.Option("--step", help="From 0.", min=0)],
    ranks: Annotated[int, typer.Option("--ranks", help="How many the run has.", min=1)] = 1,
    overrides: Overrides = [],
) -> None:
    """Print the texts of one step with their prompts, as the model will see them."""
    from embedkit.finetuning.show_batch import texts_of_step
    from embedkit.recipe import load_recipe

    for line in texts_of_step(load_recipe(recipe, overrides), step, ranks):
        typer.echo(line)


def main() -> None:
    """Run the command; a user's mistake is one line and exit code 2."""
    _shorten_warnings()
    try:
        app()
    except UserError as error:
        _tell(" ".join(str(error).split()))
        sys.exit(2)
    except Exception:
        if "RANK" in os.environ:
            _end_after_another_rank()
        raise


def _tell(mistake: str) -> None:
    """Print a mistake, with the rank where it is not rank 0; what many ranks find is told once."""
    rank = os.environ.get("RANK")
    if rank is not None:
        from embedkit import distributed

        if not distributed.is_first_to_tell(mistake):
            return
    found_by = "" if _is_main() else f"rank {rank}: "
    sys.stderr.write(f"error: {found_by}{mistake}\n")


def _end_after_another_rank() -> None:
    """End quietly if another rank has failed before, which is why this one fails."""
    from embedkit import distributed

    if not distributed.fails_first():
        # Meanwhile torchrun ends this rank, and reports the one that failed first.
        time.sleep(distributed.PATIENCE)
        sys.exit(1)


@contextmanager
def _told_when_interrupted() -> Iterator[None]:
    """Print how to go on with a run that was asked to stop; it is a success."""
    from embedkit.training.trainer import Interrupted

    try:
        yield
    except Interrupted as stopped:
        if _is_main():
            typer.echo(f"{stopped}; continue with: {_resume_command()}")


def _shorten_warnings() -> None:
    """What a user is warned of is one line too, without the code that warns."""
    whole = warnings.formatwarning

    def formatted(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        if category is not UserWarning:
            return whole(message, category, filename, lineno, line)
        return f"warning: {' '.join(str(message).split())}\n"

    warnings.formatwarning = formatted


def _is_main() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _resume_command() -> str:
    import shlex

    launcher = ["embedkit"]
    if "TORCHELASTIC_RUN_ID" in os.environ:
        ranks = os.environ["LOCAL_WORLD_SIZE"]
        launcher = ["torchrun", "--nproc-per-node", ranks, "-m", "embedkit_cli"]
    words = [word for word in sys.argv[1:] if word not in {"--resume", "--overwrite"}]
    return shlex.join([*launcher, *words, "--resume"])
