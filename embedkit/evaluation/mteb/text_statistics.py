"""Reads the texts that an mteb task encodes, or the counts of them that mteb publishes."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
from datasets import Dataset, concatenate_datasets
from mteb.abstasks import (
    AbsTaskClassification,
    AbsTaskClusteringLegacy,
    AbsTaskPairClassification,
    AbsTaskRegression,
    AbsTaskRetrieval,
    AbsTaskSTS,
)
from mteb.abstasks.abstask import AbsTask
from mteb.abstasks.text.summarization import AbsTaskSummarization
from numpy.typing import NDArray

from embedkit.errors import DataError

_CHUNK = 50_000
"""Number of texts in memory at a time."""

_DOCUMENT = ("title", "text")

Part = tuple[str, str]
"""A subset of a task's data and a split of it."""

_Table = tuple[str, Dataset, tuple[str, ...]]
"""A side (query, document or text), rows, and their columns; a text joins all columns of a row."""


class TextStatistics(NamedTuple):
    """Statistics that mteb publishes of the texts of one side of a part of a task."""

    part: Part
    side: str
    texts: int
    unique: int
    characters: float
    """Mean number of characters of a text."""


def texts_of(task: AbsTask) -> Iterator[tuple[Part, str, list[str]]]:
    """Yield the part, the side (query, document or text) and lists of the texts a task encodes.

    Of a classification's training texts at most as many are given as the task draws.
    """
    loaded = task.data_loaded
    task.load_data()
    try:
        for part in _parts(task):
            for side, rows, columns in _tables(task, *part):
                for batch in _select(rows, columns).iter(batch_size=_CHUNK):
                    yield part, side, _texts(batch, columns)
    finally:
        if not loaded:
            task.unload_data()


def corpus_of(task: AbsTask) -> Sequence[str]:
    """Load a task's data and return the texts that its context may hold.

    These are the documents of a corpus, the texts of a classification's train split, or else the
    distinct texts that are embedded. Queries and labels are left out (Morris and Rush, 2024,
    appendix).
    """
    task.load_data()
    if isinstance(task, AbsTaskClassification):
        tables = [_train_table(task, subset) for subset in task.hf_subsets]
    else:
        tables = [table for part in _parts(task) for table in _tables(task, *part)]
        if not isinstance(task, AbsTaskRetrieval):
            texts = (text for _, rows, columns in tables for text in _texts(rows, columns))
            return list(dict.fromkeys(texts))
        tables = [table for table in tables if table[0] == "document"]
    # A corpus may hold millions of texts, so they are read from disk one by one.
    _, _, columns = tables[0]
    corpus = concatenate_datasets([_select(rows, columns) for _, rows, _ in tables])
    joined = corpus.with_transform(lambda batch: {columns[-1]: _texts(batch, columns)})
    return cast(Sequence[str], joined[columns[-1]])


def documents_in(corpus: Dataset) -> pa.Table:
    """Return titles and texts of a corpus, which stay on disk."""
    table: pa.Table = _select(corpus, _DOCUMENT).with_format("arrow")[:]
    return table


def texts_at(documents: pa.Table, rows: NDArray[np.int64]) -> list[str]:
    """Return the texts of some documents, with their titles, as mteb hands them to a model.

    ``rows`` ascend. Arrow takes several times as long to read them in another order, or one by one
    as ``datasets`` does.
    """
    texts, end = list[str](), 0
    for batch in documents.to_batches():
        begin, end = end, end + len(batch)
        first, last = np.searchsorted(rows, (begin, end))
        texts += _texts(batch.take(pa.array(rows[first:last] - begin)).to_pydict(), _DOCUMENT)
    return texts


def published(task: AbsTask) -> list[TextStatistics]:
    """Return mteb's own statistics of a task's texts, which need no data.

    Raises:
        DataError: mteb publishes nothing of this task, or not all that is counted.
    """
    known: Any = task.metadata.descriptive_stats
    if not known:
        raise DataError(f"{task.metadata.name}: mteb publishes no statistics of its texts")
    found: list[TextStatistics] = []
    try:
        for part in _parts(task):
            found += _published(task, part, known)
    except KeyError as lacking:
        message = f"{task.metadata.name}: the statistics that mteb publishes lack {lacking}"
        raise DataError(message) from None
    if not found:
        type_ = task.metadata.type
        raise DataError(f"{task.metadata.name}: mteb publishes no statistics of texts of {type_}")
    return found


def _published(task: AbsTask, part: Part, known: Any) -> Iterator[TextStatistics]:
    subset, split = part
    stats = known[split]
    # The statistics of a whole split are over all its subsets.
    if len(task.metadata.hf_subsets) > 1:
        stats = stats["hf_subset_descriptive_stats"][subset]
    first, second = _sides(task)
    sides = {"queries": "query", "documents": "document", "text1": first, "text2": second}
    for key, values in stats.items():
        # A summary is compared with other summaries, and the text itself is not encoded.
        text = "text" in key and not isinstance(task, AbsTaskSummarization)
        if not values or not key.endswith("_statistics") or not (text or "summaries" in key):
            continue
        side = sides.get(key.partition("_")[0], "text")
        mean = values["average_text_length"]
        texts = round(values["total_text_length"] / mean)
        yield TextStatistics(part, side, texts, values["unique_texts"], mean)
        if isinstance(task, AbsTaskClassification):
            drawn = _drawn(task, lambda: stats["label_statistics"]["unique_labels"])
            yield TextStatistics(part, side, drawn, drawn, mean)


def _parts(task: AbsTask) -> Iterator[Part]:
    return product(task.hf_subsets, task.eval_splits)


def _sides(task: AbsTask) -> list[str]:
    """Return the sides of the first and the second text of a pair, which few tasks distinguish."""
    types = [getattr(task, f"input{number}_prompt_type", None) for number in (1, 2)]
    return [type_.value if type_ else "text" for type_ in types]


def _tables(task: AbsTask, subset: str, split: str) -> Iterator[_Table]:
    """Yield the tables that a loaded task encodes; raise for types not in MTEB(eng, v1)."""
    if isinstance(task, AbsTaskRetrieval):
        task.convert_v1_dataset_format_to_v2(num_proc=None)
        data = task.dataset[subset][split]
        ids = enumerate(data["queries"]["id"])
        judged = [row for row, id_ in ids if id_ in data["relevant_docs"]]
        yield "query", data["queries"].select(judged), ("text", "instruction")
        yield "document", data["corpus"], _DOCUMENT
        return
    columns: tuple[Any, ...]
    if isinstance(task, AbsTaskClassification):
        _, train, columns = _train_table(task, subset)
        drawn = _drawn(task, lambda: len(set(train[task.label_column_name])))
        yield "text", train.select(range(min(len(train), drawn))), columns
    elif isinstance(task, AbsTaskClusteringLegacy):
        columns = (task.input_column_name,)
    elif isinstance(task, AbsTaskPairClassification):
        columns = (task.input1_column_name, task.input2_column_name)
    elif isinstance(task, AbsTaskSTS):
        columns = task.column_names[:2]
    elif isinstance(task, AbsTaskSummarization):
        columns = (task.human_summaries_column_name, task.machine_summaries_column_name)
    else:
        type_ = task.metadata.type
        raise DataError(f"{task.metadata.name}: texts of {type_} cannot be counted")
    for side, column in zip(_sides(task), columns, strict=False):
        yield side, _splits(task, subset)[split], (str(column),)


def _train_table(task: AbsTaskClassification, subset: str) -> _Table:
    return "text", _splits(task, subset)[task.train_split], (str(task.input_column_name),)


def _splits(task: AbsTask, subset: str) -> Any:
    assert task.dataset is not None
    return task.dataset[subset] if task.metadata.is_multilingual else task.dataset


def _drawn(task: AbsTaskClassification, labels: Callable[[], int]) -> int:
    """Return the largest number of training texts that a task draws; a regression has no labels."""
    if isinstance(task, AbsTaskRegression):
        return task.n_experiments * task.n_samples
    return task.n_experiments * task.samples_per_label * labels()


def _select(rows: Dataset, columns: Sequence[str]) -> Dataset:
    return rows.select_columns([column for column in columns if column in rows.column_names])


def _texts(rows: Any, columns: Sequence[str]) -> list[str]:
    """Return one text of each row, which joins several columns as mteb does, or those of a column.

    A cell of a single column holds a list of texts in some data sets.
    """
    if len(columns) > 1:
        present = [rows[column] for column in columns if column in rows]
        return [" ".join(filter(None, cells)).strip() for cells in zip(*present, strict=True)]
    cells = rows[columns[0]]
    return [text for cell in cells for text in ([cell] if isinstance(cell, str) else cell)]
