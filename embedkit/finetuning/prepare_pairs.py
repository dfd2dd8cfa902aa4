"""Fetches, verifies and measures the pairs of a recipe, before a run that may take days."""

import warnings
from collections.abc import Iterator, Sequence

from rich.progress import BarColumn, MofNCompleteColumn
from rich.table import Table
from transformers import PreTrainedTokenizerBase

from embedkit.data.pairs.lengths import (
    Lengths,
    all_lengths,
    limits_of,
    quantiles,
    sampled_lengths,
)
from embedkit.data.pairs.open_all import open_all
from embedkit.data.tables import SHOWN_QUANTILES, plain_table
from embedkit.distributed.progress import progress_bar, say
from embedkit.finetuning.mixture import Mixture, open_mixture, resolve_steps
from embedkit.models.hub import load_tokenizer
from embedkit.recipe import Recipe

_ROLES = ("query", "positive", "negatives")


def prepare_pairs(
    recipe: Recipe, tokenizer: str, *, workers: int, sample: int | None
) -> Iterator[Table]:
    """Open every source, which fetches, verifies and caches it; yield tables of its texts.

    Args:
        recipe: recipe that names the sources.
        tokenizer: name of a model, whose tokenizer counts the tokens.
        workers: number of sources that are opened at a time.
        sample: number of rows of each source that are measured; ``None`` measures all of them.

    Raises:
        UserError: there is no such tokenizer, or a source cannot be read.
    """
    # The tokenizer is loaded before the data, which may be gigabytes to fetch.
    loaded = load_tokenizer(tokenizer)
    names = [mix.manifest for mix in recipe.data.mix]
    for number, (name, rows) in enumerate(open_all(names, workers), start=1):
        say(f"{number}/{len(names)} {name}: {rows:,} rows")
    with warnings.catch_warnings():
        # ``open_all`` has given each of these warnings already.
        warnings.simplefilter("ignore", UserWarning)
        mixture = open_mixture(recipe)
    resolved = resolve_steps(recipe, mixture)
    if sample is None:
        lengths = _all_lengths(mixture, loaded)
    else:
        lengths = [sampled_lengths(records, loaded, sample) for records in mixture.records]
    yield _shares_table(mixture, resolved)
    title = f"tokens by {tokenizer}, {f'{sample:,} rows at most' if sample else 'every text'}"
    yield _lengths_table(mixture, resolved, lengths, title)


def _all_lengths(mixture: Mixture, tokenizer: PreTrainedTokenizerBase) -> list[Lengths]:
    """Return the lengths of all texts of each source, under a progress bar."""
    lengths = []
    columns = ("tokenizing {task.description}", BarColumn(), MofNCompleteColumn(), "rows")
    with progress_bar(*columns) as bar:
        task = bar.add_task("")
        for number, records in enumerate(mixture.records, start=1):
            bar.reset(task, total=len(records), description=records.name)
            lengths.append(
                all_lengths(records, tokenizer, lambda rows: bar.update(task, completed=rows))
            )
            say(f"{number}/{len(mixture.records)} {records.name}: tokenized")
    return lengths


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
    mixture: Mixture, recipe: Recipe, lengths: Sequence[Lengths], title: str
) -> Table:
    """Show how long the texts of each source are, and how many of them the recipe cuts."""
    rows = []
    for records, measured in zip(mixture.records, lengths, strict=True):
        truncated = measured.truncated(*limits_of(records, recipe.data))
        shown = dict.fromkeys(_ROLES, "")
        for role, counts in measured.counts.items():
            by_share = quantiles(counts)
            shown[role] = " ".join(str(by_share[share]) for share in SHOWN_QUANTILES)
        rows.append((records.name, *shown.values(), f"{truncated:.1%}"))
    heads = ["source", *_ROLES, "cut"]
    return plain_table(heads, rows, title=f"{title}: median, 95 %, longest", lines=False)
