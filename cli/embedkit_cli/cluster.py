"""``embedkit cluster``: contextual batches for the sources of a recipe."""

import os
from pathlib import Path
from typing import Annotated, cast

import typer

from embedkit_cli.dtype import Precision, check_dtype

RecipeName = Annotated[
    str, typer.Option("--recipe", help="A name under recipes/, without .toml, or a path.")
]
Output = Annotated[
    Path, typer.Option("--output", help="A folder for batches, surrogate vectors and report.")
]
Surrogate = Annotated[
    str,
    typer.Option(
        "--surrogate",
        metavar="MODEL",
        help="Says what is near: a folder, a hub id, package:<distribution>/<path>, or starter.",
    ),
]
Overrides = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Override one value, e.g. data.batch_size=64."),
]
Dims = Annotated[int, typer.Option("--dims", help="Principal axes that k-means works in.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", help="Where the surrogate cuts a text.")]
ShortBatch = Annotated[
    bool,
    typer.Option("--short-batch", help="Make the rows that fill no batch a short one of its own."),
]
Backend = Annotated[str, typer.Option("--backend", help="Of the arithmetic: torch or faiss.")]
Seed = Annotated[int, typer.Option("--seed", help="Of every draw.")]


def cluster(
    recipe: RecipeName,
    output: Output,
    surrogate: Surrogate = "thenlper/gte-large",
    overrides: Overrides = [],
    dims: Dims = 128,
    max_tokens: MaxTokens = 512,
    short_batch: ShortBatch = False,
    backend: Backend = "torch",
    seed: Seed = 0,
    dtype: Precision = "auto",
) -> None:
    """Cut the sources of a recipe into full batches of pairs that are near each other.

    Under torchrun, on every rank it starts. Run again after an interruption, it continues.
    """
    check_dtype(dtype)
    from embedkit import api
    from embedkit.clustering.build import Options
    from embedkit.recipe import load_recipe

    # Whatever else was typed is checked, and refused in one line, as the settings are made.
    options = {
        "dims": dims,
        "max_tokens": max_tokens,
        "short_batch": short_batch,
        "backend": backend,
        "seed": seed,
    }
    api.cluster(
        load_recipe(recipe, overrides),
        output,
        surrogate=surrogate,
        dtype=dtype,
        **cast(Options, options),
    )
    if os.environ.get("RANK", "0") == "0":
        typer.echo((output / "report.md").read_text(encoding="utf-8"), nl=False)
