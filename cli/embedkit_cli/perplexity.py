"""``embedkit eval-perplexity``: how well models guess masked tokens as texts grow longer."""

from pathlib import Path
from typing import Annotated

import typer

from embedkit.errors import UserError
from embedkit_cli.dtype import Precision, check_dtype

Models = Annotated[
    list[str],
    typer.Option("--model", help="A masked language model: a folder or a hub id. May be repeated."),
]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        help="jsonl, parquet, csv, tsv or txt with a column text, or a manifest of text by name.",
    ),
]
Lengths = Annotated[
    str, typer.Option("--lengths", metavar="N,N,...", help="In tokens, special ones included.")
]
Output = Annotated[Path, typer.Option("--output", help="Results, CSV and plot are kept here.")]
Documents = Annotated[int, typer.Option("--documents", help="Of each length, at most.")]
Positions = Annotated[
    str, typer.Option("--positions", metavar="N|all", help="Masked in turn in each document.")
]
Seed = Annotated[int, typer.Option("--seed", help="Of the draw of positions.")]


def eval_perplexity(
    model: Models,
    data: Data,
    lengths: Lengths,
    output: Output,
    documents: Documents = 100,
    positions: Positions = "all",
    dtype: Precision = "auto",
    seed: Seed = 0,
) -> None:
    """Measure pseudo-perplexity against length; a second run scores only what is missing."""
    numbers = [_number("--lengths", each) for each in lengths.split(",")]
    masked = None if positions == "all" else _number("--positions", positions)
    check_dtype(dtype)
    from embedkit.evaluation.perplexity.pseudo_perplexity import Plan, evaluate_perplexity

    plan = Plan(tuple(dict.fromkeys(numbers)), documents, masked, seed)
    evaluate_perplexity(model, data, output, plan, dtype=dtype)
    typer.echo((output / "perplexity.csv").read_text(encoding="utf-8"), nl=False)


def _number(option: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        wanted = "a number or all" if option == "--positions" else "numbers, e.g. 512,1024"
        raise UserError(f"{option} {value}: write {wanted}") from None
