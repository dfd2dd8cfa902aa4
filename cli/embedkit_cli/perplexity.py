"""``embedkit eval-perplexity``: how well models guess masked tokens as texts grow longer."""

from pathlib import Path
from typing import Annotated, Any

import typer

from embedkit import PerplexitySettings, api
from embedkit_cli.options import with_options

Models = Annotated[
    list[str],
    typer.Option(help="A masked language model: a folder or a hub id. May be repeated."),
]
Data = Annotated[
    str,
    typer.Option(
        help="The documents: a file (jsonl, parquet, csv, tsv or txt) with a column text, or the "
        "name of a manifest of text.",
    ),
]
Output = Annotated[Path, typer.Option(help="The folder for results, CSV and plot.")]


@with_options(PerplexitySettings)
def eval_perplexity(model: Models, data: Data, output: Output, **options: Any) -> None:
    """Measure the pseudo-perplexity of models at several text lengths.

    A second run scores only what is missing.
    """
    api.evaluate_perplexity(model, data, output, **options)
    typer.echo((output / "perplexity.csv").read_text(encoding="utf-8"), nl=False)
