"""Turns rows of any shape into training pairs: picks columns, filters, checks, deduplicates."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite
from typing import Any

from embedkit.data.manifests.columns import ColumnPath, RowFilter
from embedkit.data.manifests.manifest import Description
from embedkit.data.manifests.roles import Columns
from embedkit.data.pairs import same_label
from embedkit.data.pairs.layout import Layout
from embedkit.data.sources.distinct import distinct
from embedkit.data.sources.open_source import RowStream
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


def pairs(parts: Iterable[RowStream], description: Description, layout: Layout) -> Iterator[Pair]:
    """Yield the pairs of all parts in order; an error names the part and the row in it.

    ``layout`` takes up which columns the rows have.
    """
    found = _read(parts, description, layout)
    if description.same_label:
        labelled = ((pair.query, pair.label) for pair in found if pair.label is not None)
        made = same_label.pairs(labelled, description.same_label.seed)
        found = (Pair(text, positive, [], label) for text, positive, label in made)
    return distinct(found, _key) if description.deduplicate else found


def _read(parts: Iterable[RowStream], description: Description, layout: Layout) -> Iterator[Pair]:
    keep = RowFilter(description.filter) if description.filter else None

    # Rows of one file may differ in their columns.
    @lru_cache
    def picker(names: tuple[str, ...]) -> _Picker:
        return _Picker(layout.add(names, description), drop_empty=description.drop_empty)

    for part in parts:
        for number, row in part.rows:
            layout.rows_read += 1
            try:
                if keep is None or keep(row):
                    yield from picker(tuple(row))(row)
            except DataError as error:
                raise DataError(f"{part.name}, {part.unit} {number}: {error}") from None


class _Picker:
    def __init__(self, columns: Columns, *, drop_empty: bool) -> None:
        self._drop_empty = drop_empty
        self._query = [ColumnPath(path) for path in columns.query]
        self._positive = [ColumnPath(path) for path in columns.positive]
        self._negatives = [ColumnPath(path) for path in columns.negatives]
        self._negative_concepts = [ColumnPath(path) for path in columns.negative_concepts]
        self._score = None if columns.score is None else ColumnPath(columns.score)
        self._marks = {
            mark: ColumnPath(path)
            for mark in ("label", "concept", "topic")
            if (path := getattr(columns, mark)) is not None
        }

    def __call__(self, row: Mapping[str, Any]) -> list[Pair]:
        """The row's pairs; none for an empty one that is to be dropped."""
        query = self._text(self._query, row)
        positives = self._positives(row)
        if query is None or not positives:
            return []
        negatives = self._all_texts(self._negatives, row)
        concepts = self._all_texts(self._negative_concepts, row)
        if concepts and len(concepts) != len(negatives):
            raise DataError(
                f"{len(negatives)} negatives, but {len(concepts)} concepts of negatives"
            )
        marks = {mark: self._mark(path, row) for mark, path in self._marks.items()}
        score = None if self._score is None else _number(self._score, row)
        filled = [place for place, text in enumerate(negatives) if text]
        return [
            Pair(
                query,
                positive,
                [negatives[place] for place in filled],
                negative_concepts=[concepts[place] for place in filled] if concepts else [],
                score=score,
                **marks,
            )
            for positive in positives
        ]

    def _positives(self, row: Mapping[str, Any]) -> list[str]:
        if len(self._positive) == 1 and "[]" in self._positive[0].text:
            texts = [text for text in self._all_texts(self._positive, row) if text]
            if not texts:
                self._refuse_empty(self._positive)
            return texts
        text = self._text(self._positive, row)
        return [] if text is None else [text]

    def _text(self, paths: list[ColumnPath], row: Mapping[str, Any]) -> str | None:
        """The texts at ``paths``, joined; ``None`` for an empty one that is to be dropped."""
        texts = []
        for path in paths:
            value = path(row)
            if value is not None and not isinstance(value, str):
                raise DataError(
                    f"{path.text} is {value!r:.60}, not text: correct [columns] or the data"
                )
            if value is not None and value.strip():
                texts.append(value)
        if not texts:
            self._refuse_empty(paths)
        return " ".join(texts) or None

    def _refuse_empty(self, paths: list[ColumnPath]) -> None:
        if not self._drop_empty:
            names = " and ".join(path.text for path in paths)
            raise DataError(f"{names} is empty: fill it in, or set drop_empty = true")

    def _all_texts(self, paths: list[ColumnPath], row: Mapping[str, Any]) -> list[str]:
        """Texts in order; one that is null or blank is "", so that places still match."""
        texts: list[str] = []
        for path in paths:
            for value in _flat(path(row)):
                if value is not None and not isinstance(value, str):
                    raise DataError(
                        f"{path.text} has {value!r:.60}, not text: correct [columns] or the data"
                    )
                texts.append(value if value and value.strip() else "")
        return texts

    def _mark(self, path: ColumnPath, row: Mapping[str, Any]) -> str | None:
        value = path(row)
        if value is None or isinstance(value, str | int):
            return None if value is None else str(value)
        raise DataError(
            f"{path.text} is {value!r:.60}, neither text nor a whole number: correct [columns] or "
            "the data, or list it in ignore"
        )


def _number(path: ColumnPath, row: Mapping[str, Any]) -> float:
    value = path(row)
    try:
        # csv and tsv know text alone.
        if isinstance(value, str | int | float) and isfinite(number := float(value)):
            return number
    except ValueError:
        pass
    raise DataError(
        f"{path.text} is {value!r:.60}, not a finite number: correct columns.score or the data, or "
        "leave the row out by a filter"
    )


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for each in value:
            yield from _flat(each)
    else:
        yield value


def _key(pair: Pair) -> str:
    # The length keeps ("a b", "c") and ("a", "b c") apart.
    return f"{len(pair.query)} {pair.query}{pair.positive}"
