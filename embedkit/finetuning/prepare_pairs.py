"""Fetching, verifying and measuring the pairs of a recipe, before a run that may take days."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table
from transformers import PreTrainedTokenizerBase

from embedkit.data.pairs.lengths import QUANTILES, Lengths, all_lengths, sampled_lengths
from embedkit.data.pairs.open_all import open_all
from embedkit.data.tables import SHOWN_QUANTILES, plain_table
from embedkit.finetuning.mixture import Mixture, open_mixture, resolve_steps
from embedkit.models.hub import load_tokenizer
from embedkit.recipe import Recipe

OnProgress = Callable[[str], object]
"""Hears a line whenever a source is done."""


def prepare_pairs(
    recipe: Recipe,
    tokenizer: str,
    *,
    workers: int,
    sample: int | None = None,
    on_progress: OnProgress = lambda line: None,
) -> Iterator[Table]:
    """Open every source, which fetches, verifies and caches it, and tell what training reads.

    Args:
        recipe: names the sources.
        tokenizer: a model, whose tokenizer counts the tokens.
        workers: sources that are opened at a time.
        sample: measure this many rows of each source; ``None`` measures all of them.
        on_progress: hears a line whenever a source is opened or measured.

    Raises:
        UserError: there is no such tokenizer, or a source cannot be read.
    """
    # Before the data, which may be gigabytes to fetch.
    loaded = load_tokenizer(tokenizer)
    names = [mix.manifest for mix in recipe.data.mix]
    for number, (name, rows) in enumerate(open_all(names, workers), start=1):
        on_progress(f"{number}/{len(names)}\t{name}\t{rows} rows")
    with warnings.catch_warnings():
        # Each was heard a moment ago.
        warnings.simplefilter("ignore", UserWarning)
        mixture = open_mixture(recipe)
    resolved = resolve_steps(recipe, mixture)
    lengths = _measured(mixture, loaded, sample, on_progress)
    yield _shares_table(mixture, resolved)
    title = f"tokens by {tokenizer}, {f'{sample:,} rows at most' if sample else 'every text'}"
    yield _lengths_table(mixture, resolved, lengths, title)


def _measured(
    mixture: Mixture,
    tokenizer: PreTrainedTokenizerBase,
    sample: int | None,
    on_progress: OnProgress,
) -> dict[str, Lengths]:
    """Return the lengths of every source's texts, or of a sample of rows, by its name."""
    if sample is not None:
        return {
            records.name: sampled_lengths(records, tokenizer, sample) for records in mixture.records
        }
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("tokenizing {task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rows"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    lengths = {}
    with bar as progress:
        for number, records in enumerate(mixture.records, start=1):
            task = progress.add_task(records.name, total=len(records))
            on_rows = partial(_advance, progress, task)
            lengths[records.name] = all_lengths(records, tokenizer, on_rows)
            progress.remove_task(task)
            on_progress(f"{number}/{len(mixture.records)}\t{records.name}\ttokenized")
    return lengths


def _advance(progress: Progress, task: TaskID, rows: int) -> None:
    progress.update(task, completed=rows)


def _shares_table(mixture: Mixture, recipe: Recipe) -> Table:
    """Show what a recipe, its steps resolved, reads of each source, and how often."""
    assert recipe.steps is not None
    rows = []
    for records, source, share in zip(
        mixture.records, mixture.sources, mixture.shares, strict=True
    ):
        batches = share * recipe.steps * recipe.optim.gradient_accumulation_steps
        passes = batches * source.batch_size / source.rows
        license = records.license or "not stated"
        rows.append((source.name, f"{source.rows:,}", f"{share:.1%}", f"{passes:.2f}", license))
    heads = ["source", "rows", "steps", "passes", "licence"]
    return plain_table(heads, rows, title=f"{recipe.steps:,} steps", lines=False)


def _lengths_table(
    mixture: Mixture, recipe: Recipe, lengths: Mapping[str, Lengths], title: str
) -> Table:
    """Show how long the texts of each source are, and how many of them the recipe cuts."""
    rows = []
    for records in mixture.records:
        measured = lengths[records.name]
        truncated = measured.truncated(
            records.description.max_query_tokens or recipe.data.max_query_tokens,
            records.description.max_document_tokens or recipe.data.max_document_tokens,
        )
        sides = [_quantiles(measured, role) for role in ("query", "positive", "negatives")]
        rows.append((records.name, *sides, f"{truncated:.1%}"))
    heads = ["source", "query", "positive", "negatives", "cut"]
    return plain_table(heads, rows, title=f"{title}: median, 95 %, longest", lines=False)


def _quantiles(lengths: Lengths, role: str) -> str:
    if role not in lengths.counts:
        return ""
    by_quantile = dict(zip(QUANTILES, lengths.quantiles[role], strict=True))
    return " ".join(str(by_quantile[quantile]) for quantile in SHOWN_QUANTILES)
