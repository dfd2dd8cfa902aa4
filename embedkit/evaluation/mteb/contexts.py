"""The context in which a contextual model reads a task: drawn from its corpus, kept on disk."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from datasets import Dataset, concatenate_datasets
from mteb.abstasks import AbsTaskClassification, AbsTaskRetrieval
from mteb.abstasks.abstask import AbsTask

from embedkit.errors import UserError
from embedkit.evaluation.encoding.in_context import ContextualEncoder
from embedkit.evaluation.mteb.text_statistics import flat, joined, tables_of
from embedkit.models.contextual.context import Context
from embedkit.storage.hashing import sha256_of_json


def context_of(
    encoder: ContextualEncoder, task: AbsTask, prompts: Mapping[str, str], folder: Path
) -> Context:
    """The model's frozen context, or the one that it draws from the task, once, into ``folder``.

    Where the task's data have to be read for it, they stay loaded.

    Raises:
        DataError: the task's type is none of MTEB(eng, v1), so that its texts are not known.
        UserError: the model cannot be filled with documents that are not there.
    """
    if encoder.frozen is not None:
        return encoder.frozen
    prompt = prompts["document"] if "document" in prompts else prompts["text"]
    source = [task.metadata.revision, list(task.eval_splits), list(task.hf_subsets)]
    key = sha256_of_json([encoder.identity, prompt, *source])
    path = folder / f"{task.metadata.name}-{key[:16]}.safetensors"
    with suppress(UserError):  # It is not there, or was cut short.
        return Context.load(path)
    context = encoder.build_context(corpus_of(task), prompt)
    context.save(path)
    return context


def facts(context: Context) -> dict[str, Any]:
    """What results tell of a context."""
    return {
        "documents": len(context.vectors),
        "corpus_size": context.corpus_size,
        "seed": context.seed,
        "hash": context.hash,
    }


def corpus_of(task: AbsTask) -> Sequence[str]:
    """The texts of a task that its context may hold; loads the task's data if need be.

    Documents where there is a corpus; of a classification the texts of the train split; else the
    distinct texts that are embedded. Never queries or labels (Morris and Rush, 2024, appendix).

    Raises:
        DataError: the task's type is none of MTEB(eng, v1), so that its texts are not known.
    """
    task.load_data()
    tables = [
        table
        for subset in task.hf_subsets
        for table in (
            [_train(task, subset)]
            if isinstance(task, AbsTaskClassification)
            else [each for split in task.eval_splits for each in _embedded(task, subset, split)]
        )
    ]
    if isinstance(task, AbsTaskRetrieval | AbsTaskClassification):
        return _Rows(tables)
    texts = (text for rows, (column,) in tables for cell in rows[column] for text in flat(cell))
    return list(dict.fromkeys(texts))


_Table = tuple[Dataset, tuple[str, ...]]


def _train(task: AbsTaskClassification, subset: str) -> _Table:
    assert task.dataset is not None
    splits = task.dataset[subset] if task.metadata.is_multilingual else task.dataset
    return splits[task.train_split], (str(task.input_column_name),)


def _embedded(task: AbsTask, subset: str, split: str) -> list[_Table]:
    return [
        (rows, columns) for side, rows, columns in tables_of(task, subset, split) if side != "query"
    ]


class _Rows(Sequence[str]):
    """Texts that are read from the disk one by one: a corpus may hold millions."""

    def __init__(self, tables: Sequence[_Table]) -> None:
        self._rows = concatenate_datasets(
            [
                rows.select_columns([each for each in columns if each in rows.column_names])
                for rows, columns in tables
            ]
        )
        _, self._columns = tables[0]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        row = self._rows[int(index)]
        if len(self._columns) == 1:
            return row[self._columns[0]]
        return joined(row.get(column) for column in self._columns)
