"""Divides sources into training rows and validation rows, by the documents of the rows."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from embedkit import distributed
from embedkit.data.concepts import unit_hash
from embedkit.data.pairs.leaks import fold
from embedkit.data.pairs.records import Records
from embedkit.data.pairs.table import Part
from embedkit.errors import DataError

_KEY = b"embedkit: validation documents"


def divided(
    records: Sequence[Records], share: float
) -> tuple[tuple[Records, ...], tuple[Records, ...]]:
    """Return the training part of each source, and the validation part of those that have one.

    A row is a validation row if its positive lies in the ``share`` of documents, which a hash of
    the text decides for all sources alike: no validation document is the positive of a training
    row, and a smaller share is part of a larger one.

    Raises:
        DataError: no row of any source lies in the share.
    """
    held = distributed.on_main(partial(_held_rows, records, share))
    if not any(map(len, held)):
        raise DataError(
            f"validation.share = {share}: none of the {sum(map(len, records)):,} rows lies in it; "
            "raise it, or name other pairs in validation.records"
        )
    training, validation = [], []
    for source, rows in zip(records, held, strict=True):
        if not len(rows):
            training.append(source)
            continue
        training.append(source.reading(Part(source.table, rows, listed=False)))
        validation.append(source.reading(Part(source.table, rows, listed=True)))
    return tuple(training), tuple(validation)


def rows_with_a_text_of(validation: Sequence[Records], training: Sequence[Records]) -> int:
    """Count the training rows that have a query or positive of a validation row as any text.

    Texts are compared without differences of case and of white space.
    """
    held = {
        fold(text)
        for records in validation
        for pair in records.table.scan(("query", "positive"))
        for text in pair
    }
    return sum(
        any(fold(text) in held for text in (query, positive, *negatives))
        for records in training
        for query, positive, negatives in records.table.scan(("query", "positive", "negatives"))
    )


def _held_rows(records: Sequence[Records], share: float) -> list[NDArray[np.int64]]:
    """Return the numbers of the rows of each source whose positive lies in the share."""
    return [
        np.array(
            [
                row
                for row, (positive,) in enumerate(source.table.scan(("positive",)))
                if unit_hash(fold(positive), _KEY) < share
            ],
            dtype=np.int64,
        )
        for source in records
    ]
