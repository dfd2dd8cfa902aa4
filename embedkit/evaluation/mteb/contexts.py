"""Draws the context of a contextual model from a task's corpus, and keeps it on disk."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from datasets import concatenate_datasets
from mteb.abstasks import AbsTaskClassification, AbsTaskRetrieval
from mteb.abstasks.abstask import AbsTask

from embedkit.errors import UserError
from embedkit.evaluation.encoding.in_context import ContextualEncoder
from embedkit.evaluation.mteb.text_statistics import Table, cell_texts, tables_of, train_table
from embedkit.models.contextual.context import Context
from embedkit.storage.hashing import sha256_of_json


def context_of(
    encoder: ContextualEncoder, task: AbsTask, prompts: Mapping[str, str], folder: Path
) -> Context:
    """Return the model's frozen context, or one drawn from the task, once, into ``folder``.

    If the draw loads the task's data, they stay loaded.

    Raises:
        DataError: the task's type is none of MTEB(eng, v1), so that its texts are not known.
        UserError: the corpus has too few documents for the model.
    """
    if encoder.frozen is not None:
        return encoder.frozen
    prompt = prompts["document"] if "document" in prompts else prompts["text"]
    source = [task.metadata.revision, list(task.eval_splits), list(task.hf_subsets)]
    key = sha256_of_json([encoder.identity, prompt, *source])
    path = folder / f"{task.metadata.name}-{key[:16]}.safetensors"
    with suppress(UserError):  # The file is not there, or was cut short.
        return Context.load(path)
    context = encoder.build_context(corpus_of(task), prompt)
    context.save(path)
    return context


def corpus_of(task: AbsTask) -> Sequence[str]:
    """Load a task's data and return the texts that its context may hold.

    These are the documents of a corpus, the texts of a classification's train split, or else the
    distinct texts that are embedded. Queries and labels are left out (Morris and Rush, 2024,
    appendix).

    Raises:
        DataError: the task's type is none of MTEB(eng, v1), so that its texts are not known.
    """
    task.load_data()
    if isinstance(task, AbsTaskClassification):
        return _Rows([train_table(task, subset) for subset in task.hf_subsets])
    tables = [
        table
        for subset in task.hf_subsets
        for split in task.eval_splits
        for table in tables_of(task, subset, split)
        if table[0] != "query"
    ]
    if isinstance(task, AbsTaskRetrieval):
        return _Rows(tables)
    cells = ((cell, columns) for _, rows, columns in tables for cell in rows[columns[0]])
    return list(dict.fromkeys(text for cell, key in cells for text in cell_texts([cell], key)))


class _Rows(Sequence[str]):
    """Texts that are read from disk one by one, since a corpus may hold millions."""

    def __init__(self, tables: Sequence[Table]) -> None:
        _, _, self._columns = tables[0]
        self._rows = concatenate_datasets(
            [
                rows.select_columns([name for name in columns if name in rows.column_names])
                for _, rows, columns in tables
            ]
        )

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        row = self._rows[int(index)]
        (text,) = cell_texts((row.get(column) for column in self._columns), self._columns)
        return text
