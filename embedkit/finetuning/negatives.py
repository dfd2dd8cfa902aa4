"""Refuses sources whose queries can have no negative, and says what a run does with negatives."""

from collections.abc import Iterator

from embedkit import distributed
from embedkit.data.pairs.records import Records
from embedkit.errors import DataError
from embedkit.finetuning.mixture import Mixture
from embedkit.recipe import Recipe


def check_negatives(recipe: Recipe, mixture: Mixture) -> None:
    """Verify that every source can give a query a negative, if the loss needs one.

    Raises:
        DataError: no query of a source could have a negative, so that it would train nothing.
    """
    if not recipe.objective.needs.negatives:
        return
    # Ranks that share a batch and no documents have a part of it each.
    whole = recipe.batches_per_rank or recipe.objective.needs.cross_device
    parts = 1 if whole else distributed.world_size()
    for source, records in zip(mixture.sources, mixture.records, strict=True):
        if records.negatives_per_query and records.negatives_given:
            continue
        if reason := _why_none(records, source.batch_size // parts):
            raise DataError(f"source {records.name}: no query can have a negative: {reason}")


def _why_none(records: Records, shared: int) -> str | None:
    """Return why the other rows of a batch, ``shared`` rows in all, are no negatives, if so."""
    mined = "name columns.negatives or run embedkit mine"
    if records.negatives_given:
        mined = "leave negatives_per_query out"
    if not records.description.in_batch_negatives:
        return (
            "in_batch_negatives = false, and it trains on no hard negatives; leave the former out, "
            f"or {mined}"
        )
    if shared < 2:
        return (
            "a query shares its batch with no other row, and it trains on no hard negatives; "
            f"raise batch_size, or {mined}"
        )
    if label := _only_value(records, "label"):
        return (
            f'all rows have the label {label!r:.60}; leave the column out with ignore = ["label"], '
            f"or {mined}"
        )
    for column in ("positive", "query"):
        if text := _only_value(records, column):
            return f"all rows have the {column} {text!r:.60}; leave the source out, or {mined}"
    return None


def _only_value(records: Records, column: str) -> str | None:
    """Return the text that all rows have in ``column``; reads no further than to a second text."""
    values = (value and value.strip() for (value,) in records.table.scan((column,)))
    first: str | None = next(values, None)
    return first if first and all(value == first for value in values) else None


def remarks_on_negatives(recipe: Recipe, mixture: Mixture) -> Iterator[str]:
    """Yield what training does otherwise than a source's rows or its manifest suggest."""
    for source, records in zip(mixture.sources, mixture.records, strict=True):
        used, given = records.negatives_per_query, records.negatives_given
        if records.description.negatives_per_query is None and used < given:
            yield (
                f"source {records.name}: each step draws {used} of up to {given} hard negatives of "
                f"a query; negatives_per_query = {given} reads all of them"
            )
        if records.batch_size and records.batch_size > recipe.data.batch_size:
            yield (
                f"source {records.name}: its batch_size = {records.batch_size} is above the "
                f"recipe's, and its batches have {source.batch_size} pairs; to read more at a "
                f"time, raise data.batch_size"
            )
