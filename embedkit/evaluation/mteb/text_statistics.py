"""Which texts an mteb task has encoded: read from its data, or as mteb has counted them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from mteb.abstasks import (
    AbsTaskClassification,
    AbsTaskClusteringLegacy,
    AbsTaskPairClassification,
    AbsTaskRetrieval,
    AbsTaskSTS,
)
from mteb.abstasks.abstask import AbsTask
from mteb.abstasks.text.summarization import AbsTaskSummarization

from embedkit.errors import DataError

_CHUNK = 50_000
"""Texts in memory at a time."""


@dataclass(frozen=True)
class TextStatistics:
    """What mteb publishes of the texts of one side of a task."""

    side: str
    texts: int
    unique: int
    characters: float
    """Of a text, on average."""


def texts_of(task: AbsTask) -> Iterator[tuple[str, list[str]]]:
    """The texts of a task piece by piece, each with its side: query or document, or text.

    Of a classification's training texts it gives as many as are drawn at most.

    Raises:
        DataError: the task's type is none of MTEB(eng, v1), so that its texts are not known.
    """
    loaded = task.data_loaded
    task.load_data()
    try:
        for subset in task.hf_subsets:
            for split in task.eval_splits:
                for side, rows, columns in tables_of(task, subset, split):
                    for texts in _pieces(rows, columns):
                        yield side, texts
    finally:
        if not loaded:
            task.unload_data()


def published(task: AbsTask) -> list[TextStatistics]:
    """What mteb publishes of a task's texts, so that its data need not be fetched to count them.

    Raises:
        DataError: mteb publishes nothing of this task.
    """
    known: Any = task.metadata.descriptive_stats
    if not known:
        raise DataError(f"{task.metadata.name}: mteb publishes no statistics of its texts")
    found: list[TextStatistics] = []
    for split in task.eval_splits:
        for subset in task.hf_subsets:
            whole = known[split]
            stats = whole.get("hf_subset_descriptive_stats", {}).get(subset, whole)
            found += _published(task, stats)
    return found


def _published(task: AbsTask, stats: dict[str, Any]) -> Iterator[TextStatistics]:
    for key, values in stats.items():
        # A summary is compared with other summaries, and the text itself is not encoded.
        text = "text" in key and not isinstance(task, AbsTaskSummarization)
        if not values or not key.endswith("_statistics") or not (text or "summaries" in key):
            continue
        side = {"queries": "query", "documents": "document"}.get(key.partition("_")[0], "text")
        mean = values["average_text_length"]
        texts = round(values["total_text_length"] / mean)
        yield TextStatistics(side, texts, values["unique_texts"], mean)
        if isinstance(task, AbsTaskClassification):
            drawn = _drawn(task, stats["label_statistics"]["unique_labels"])
            yield TextStatistics(side, drawn, drawn, mean)


def tables_of(
    task: AbsTask, subset: str, split: str
) -> Iterator[tuple[str, Dataset, tuple[str, ...]]]:
    """The tables that a task encodes, with their sides; columns of one tuple are joined."""
    if isinstance(task, AbsTaskRetrieval):
        task.convert_v1_dataset_format_to_v2(num_proc=None)
        data = task.dataset[subset][split]
        judged = [
            number
            for number, id_ in enumerate(data["queries"]["id"])
            if id_ in data["relevant_docs"]
        ]
        yield "query", data["queries"].select(judged), ("text", "instruction")
        yield "document", data["corpus"], ("title", "text")
        return
    assert task.dataset is not None
    splits = task.dataset[subset] if task.metadata.is_multilingual else task.dataset
    rows = splits[split]
    if isinstance(task, AbsTaskClassification):
        train = splits[task.train_split]
        drawn = _drawn(task, len(set(train[task.label_column_name])))
        yield "text", train.select(range(min(len(train), drawn))), (str(task.input_column_name),)
        yield "text", rows, (str(task.input_column_name),)
    elif isinstance(task, AbsTaskClusteringLegacy):
        yield "text", rows, (str(task.input_column_name),)
    elif isinstance(task, AbsTaskPairClassification):
        for column in (task.input1_column_name, task.input2_column_name):
            yield "text", rows, (str(column),)
    elif isinstance(task, AbsTaskSTS):
        for column in task.column_names[:2]:
            yield "text", rows, (str(column),)
    elif isinstance(task, AbsTaskSummarization):
        for column in (task.human_summaries_column_name, task.machine_summaries_column_name):
            yield "text", rows, (column,)
    else:
        raise DataError(f"{task.metadata.name}: texts of {task.metadata.type} cannot be counted")


def _drawn(task: AbsTaskClassification, labels: int) -> int:
    return task.n_experiments * task.samples_per_label * labels


def _pieces(rows: Dataset, columns: tuple[str, ...]) -> Iterator[list[str]]:
    present = [column for column in columns if column in rows.column_names]
    for batch in rows.select_columns(present).iter(batch_size=_CHUNK):
        values = zip(*(batch[column] for column in present), strict=True)
        if len(columns) > 1:
            yield [joined(row) for row in values]
        else:
            yield [text for row in values for text in flat(row[0])]


def joined(parts: Iterable[str | None]) -> str:
    """A title and its document, as mteb joins them."""
    return " ".join(part for part in parts if part).strip()


def flat(value: str | list[str]) -> Iterable[str]:
    """The texts of a cell, which in some data sets holds many."""
    return (value,) if isinstance(value, str) else value
