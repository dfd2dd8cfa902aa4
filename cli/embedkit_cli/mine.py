"""``embedkit mine``: hard negatives for a source of pairs."""

import os
from pathlib import Path
from typing import Annotated, cast

import typer

from embedkit.errors import UserError
from embedkit_cli.dtype import Precision, check_dtype

Source = Annotated[
    str, typer.Option("--source", help="A manifest: a name under data_manifests/, or a path.")
]
Model = Annotated[
    str,
    typer.Option("--model", help="A folder, a hub id, package:<distribution>/<path>, or starter."),
]
Output = Annotated[
    Path, typer.Option("--output", help="A folder; the manifest in it is called as the folder is.")
]
Negatives = Annotated[int, typer.Option("--negatives", help="For each row, at most.")]
Skip = Annotated[int, typer.Option("--skip", help="Documents left out at the top of a ranking.")]
Depth = Annotated[int, typer.Option("--depth", help="The last rank that is looked at.")]
Margin = Annotated[
    float, typer.Option("--margin", help="How far below the positive a negative has to score.")
]
MarginKind = Annotated[
    str,
    typer.Option(
        "--margin-kind",
        help="relative (a share of the positive's score), absolute (a difference) or none.",
    ),
]
Sampling = Annotated[
    str, typer.Option("--sampling", help="top, or random: drawn from all that are admitted.")
]
Seed = Annotated[int, typer.Option("--seed", help="Of the draw, and of the lists of faiss-ivf.")]
Search = Annotated[
    str, typer.Option("--search", help="torch or faiss-flat, both exact, or faiss-ivf.")
]
Lists = Annotated[int | None, typer.Option("--lists", help="Of faiss-ivf. Default: 4 sqrt(n).")]
Probes = Annotated[
    int | None,
    typer.Option("--probes", help="Lists that faiss-ivf looks into. Default: a sixteenth, 8 up."),
]
Store = Annotated[str, typer.Option("--store", help="Of the vectors on disk: fp16 or fp32.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Start anew, and replace what was mined before.")
]


def mine(
    source: Source,
    model: Model,
    output: Output,
    negatives: Negatives = 5,
    skip: Skip = 0,
    depth: Depth = 100,
    margin: Margin = 0.05,
    margin_kind: MarginKind = "relative",
    sampling: Sampling = "top",
    seed: Seed = 0,
    search: Search = "torch",
    lists: Lists = None,
    probes: Probes = None,
    store: Store = "fp16",
    dtype: Precision = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Find hard negatives for every pair of a source: a new source, for embedkit finetune.

    Run again after an interruption, it continues; --output is written whole or not at all.
    """
    check_dtype(dtype)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("embedkit mine works in one process: start it without torchrun")
    from embedkit.mining import mine_source
    from embedkit.mining.settings import MiningOptions

    # Whatever else was typed is checked, and refused in one line, as the settings are made.
    options = {
        "negatives": negatives,
        "skip": skip,
        "depth": depth,
        "margin": margin,
        "margin_kind": margin_kind,
        "sampling": sampling,
        "seed": seed,
        "search": search,
        "lists": lists,
        "probes": probes,
        "store": store,
    }
    mined = mine_source.mine(
        source, model, output, dtype=dtype, overwrite=overwrite, **cast(MiningOptions, options)
    )
    typer.echo(mined.audit.text())
    typer.echo(f"manifest: {mined.manifest}")
