"""Turns rows of any shape into training pairs: picks columns, filters, checks, deduplicates."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import zip_longest
from math import isfinite

from embedkit.data.concepts import held_out_share, is_held_out
from embedkit.data.manifests.columns import ColumnPath, Columns, RowFilter
from embedkit.data.manifests.manifest import Description
from embedkit.data.pairs import judged as judged_pairs
from embedkit.data.pairs import same_label
from embedkit.data.pairs.layout import ColumnLayout
from embedkit.data.pairs.pair import Pair
from embedkit.data.pairs.recognition import MATCH, is_judgement, judged
from embedkit.data.sources.rows import Row, RowStream, convert
from embedkit.data.sources.streams import distinct
from embedkit.errors import DataError


def pairs(
    streams: Iterable[RowStream], description: Description, layout: ColumnLayout
) -> Iterator[Pair]:
    """Yield the pairs of all streams in order; an error names the stream and the row in it.

    The columns that the rows have are added to ``layout``.
    """
    keep = RowFilter(description.filter) if description.filter else None

    # Rows of one file may differ in their columns.
    @lru_cache
    def maker(names: tuple[str, ...]) -> _PairMaker:
        return _PairMaker(layout.add(names, description), description)

    def make(row: Row) -> list[Pair]:
        layout.rows_read += 1
        return maker(tuple(row))(row) if keep is None or keep(row) else []

    read = convert(streams, make)
    if description.same_label:
        labelled = ((pair.query, pair.label) for pair in read if pair.label is not None)
        related = same_label.pairs(labelled, description.same_label.seed)
        read = (Pair(text, positive, [], label) for text, positive, label in related)
    elif description.columns.label is None:
        read = _of_classes(read, layout)
    if description.deduplicate:
        # The length keeps ("a b", "c") and ("a", "b c") apart.
        read = distinct(read, lambda pair: f"{len(pair.query)} {pair.query}{pair.positive}")
    if description.negative_below is not None:
        read = judged_pairs.with_negatives(read, description.negative_below, layout)
    return read


def _of_classes(read: Iterable[Pair], layout: ColumnLayout) -> Iterator[Pair]:
    """Pass pairs on; at their end, refuse labels that were only recognised and are 0 or 1."""
    judged_only, some = True, False
    for pair in read:
        judged_only = judged_only and is_judgement(pair.label)
        some = some or bool(pair.label)
        yield pair
    if judged_only and some:
        raise DataError(judged(layout.columns["label"][0], MATCH))


class _PairMaker:
    """Makes the pairs of rows that have the same columns."""

    def __init__(self, columns: Columns, description: Description) -> None:
        self._lists = "positive" not in description.columns.model_fields_set
        self._paths = {role: [*map(ColumnPath, texts)] for role, texts in columns.paths().items()}
        self._drop_empty = description.drop_empty
        self._share = held_out_share(description)

    def __call__(self, row: Row) -> list[Pair]:
        """Return the row's pairs; none for an empty one that is to be dropped."""
        queries, positives = self._side("query", row), self._side("positive", row)
        if not queries or not positives:
            return []
        paths = self._paths
        negatives, concepts = (
            [text for path in paths.get(role, ()) for text in path.texts_in(row)]
            for role in ("negatives", "negative_concepts")
        )
        needed = concepts or (self._share and any(negatives))
        if needed and len(concepts) != len(negatives):
            raise DataError(
                f"{len(negatives)} negatives, but {len(concepts)} concepts of negatives"
            )
        remedy = "[columns] or the data, or list it in ignore"
        label, concept, topic = (
            paths[mark][0].mark_in(row, remedy) if mark in paths else None
            for mark in ("label", "concept", "topic")
        )
        score = _number(paths["score"][0], row) if "score" in paths else None
        scores = self._scores(row, len(positives), len(negatives)) if "scores" in paths else None
        held_out = is_held_out(concept, self._share)
        # Negatives about concepts of the other split are dropped.
        places = [
            place
            for place, (text, about) in enumerate(zip_longest(negatives, concepts))
            if text and is_held_out(about, self._share) == held_out
        ]
        kept = [negatives[place] for place in places]
        if scores:
            scores = [scores[0], *(scores[1 + place] for place in places)]
        return [
            Pair(queries[0], positive, kept, label, concept, topic, score, scores, held_out)
            for positive in positives
        ]

    def _scores(self, row: Row, positives: int, negatives: int) -> list[float]:
        """Return a teacher's scores of a row's positive and its negatives."""
        paths = self._paths["scores"]
        names = " and ".join(path.text for path in paths)
        if positives > 1:
            raise DataError(f"{names}: the row has {positives} positives, not one: split it")
        scores = [_finite(value, path, "scores") for path in paths for value in path.values_in(row)]
        if len(scores) != 1 + negatives:
            raise DataError(
                f"{names}: has {len(scores)} scores for one positive and {negatives} negatives: "
                "give one for each, that of the positive first"
            )
        return scores

    def _side(self, role: str, row: Row) -> list[str]:
        """Return a side's text, or several texts for a positive's ``[]``; none to drop the row."""
        paths = self._paths[role]
        # A positive that was recognised may be a text in one row and a list in another.
        several = role == "positive" and len(paths) == 1 and (self._lists or "[]" in paths[0].text)
        read = paths[0].texts_in(row) if several else [path.text_in(row) for path in paths]
        texts = [text for text in read if text]
        if not texts and not self._drop_empty:
            names = " and ".join(path.text for path in paths)
            raise DataError(f"{names} is empty: fill it in, or set drop_empty = true")
        return texts if several or not texts else [" ".join(texts)]


def _number(path: ColumnPath, row: Row) -> float:
    return _finite(path(row), path, "score")


def _finite(value: object, path: ColumnPath, part: str) -> float:
    with suppress(ValueError):
        # Values of csv and tsv files are always text.
        if isinstance(value, str | int | float) and isfinite(number := float(value)):
            return number
    raise DataError(
        f"{path.text} is {value!r:.60}, not a finite number: correct columns.{part} or the data, "
        "or leave the row out by a filter"
    )
