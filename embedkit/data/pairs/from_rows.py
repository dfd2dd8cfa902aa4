"""Turns rows of any shape into training pairs: picks columns, filters, checks, deduplicates."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite

from embedkit.data.manifests.columns import ColumnPath, RowFilter
from embedkit.data.manifests.manifest import Description
from embedkit.data.manifests.roles import Columns
from embedkit.data.pairs import same_label
from embedkit.data.pairs.layout import ColumnLayout
from embedkit.data.sources.rows import Row, RowStream, convert
from embedkit.data.sources.streams import distinct
from embedkit.errors import DataError


@dataclass(slots=True)
class Pair:
    query: str
    positive: str
    negatives: list[str]
    label: str | None = None
    concept: str | None = None
    negative_concepts: list[str] = field(default_factory=list)
    topic: str | None = None
    score: float | None = None


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
        return _PairMaker(layout.add(names, description), drop_empty=description.drop_empty)

    def make(row: Row) -> list[Pair]:
        layout.rows_read += 1
        return maker(tuple(row))(row) if keep is None or keep(row) else []

    read = convert(streams, make)
    if description.same_label:
        labelled = ((pair.query, pair.label) for pair in read if pair.label is not None)
        related = same_label.pairs(labelled, description.same_label.seed)
        read = (Pair(text, positive, [], label) for text, positive, label in related)
    if description.deduplicate:
        # The length keeps ("a b", "c") and ("a", "b c") apart.
        read = distinct(read, lambda pair: f"{len(pair.query)} {pair.query}{pair.positive}")
    return read


class _PairMaker:
    """Makes the pairs of rows that have the same columns."""

    def __init__(self, columns: Columns, *, drop_empty: bool) -> None:
        self._drop_empty = drop_empty
        paths = {role: [*map(ColumnPath, texts)] for role, texts in columns.paths().items()}
        self._query, self._positive = paths["query"], paths["positive"]
        self._negatives = paths.get("negatives", [])
        self._negative_concepts = paths.get("negative_concepts", [])
        self._marks = {
            mark: paths[mark][0] for mark in ("label", "concept", "topic") if mark in paths
        }
        self._score = paths["score"][0] if "score" in paths else None

    def __call__(self, row: Row) -> list[Pair]:
        """Return the row's pairs; none for an empty one that is to be dropped."""
        query = self._joined(self._query, row)
        positives = self._positives(row)
        if not query or not positives:
            return []
        negatives = [text for path in self._negatives for text in path.texts_in(row)]
        concepts = [text for path in self._negative_concepts for text in path.texts_in(row)]
        if concepts and len(concepts) != len(negatives):
            raise DataError(
                f"{len(negatives)} negatives, but {len(concepts)} concepts of negatives"
            )
        remedy = "[columns] or the data, or list it in ignore"
        marks = {mark: path.mark_in(row, remedy) for mark, path in self._marks.items()}
        score = None if self._score is None else _number(self._score, row)
        filled = [index for index, text in enumerate(negatives) if text]
        return [
            Pair(
                query,
                positive,
                [negatives[index] for index in filled],
                negative_concepts=[concepts[index] for index in filled] if concepts else [],
                score=score,
                **marks,
            )
            for positive in positives
        ]

    def _positives(self, row: Row) -> list[str]:
        if len(self._positive) > 1 or "[]" not in self._positive[0].text:
            return [text] if (text := self._joined(self._positive, row)) else []
        texts = [text for text in self._positive[0].texts_in(row) if text]
        if not texts:
            self._refuse_empty(self._positive)
        return texts

    def _joined(self, paths: list[ColumnPath], row: Row) -> str:
        """Return the texts at ``paths``, joined; "" for a row that is to be dropped."""
        texts = [text for path in paths if (text := path.text_in(row))]
        if not texts:
            self._refuse_empty(paths)
        return " ".join(texts)

    def _refuse_empty(self, paths: list[ColumnPath]) -> None:
        if not self._drop_empty:
            names = " and ".join(path.text for path in paths)
            raise DataError(f"{names} is empty: fill it in, or set drop_empty = true")


def _number(path: ColumnPath, row: Row) -> float:
    value = path(row)
    try:
        # Values of csv and tsv files are always text.
        if isinstance(value, str | int | float) and isfinite(number := float(value)):
            return number
    except ValueError:
        pass
    raise DataError(
        f"{path.text} is {value!r:.60}, not a finite number: correct columns.score or the data, or "
        "leave the row out by a filter"
    )
