"""Looks up the texts and judgements of a task's queries where an evaluation read them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from datasets import Dataset
from mteb._create_dataloaders import _retrieval_texts
from mteb.abstasks import AbsTaskRetrieval
from mteb.abstasks.abstask import AbsTask
from mteb.types import PromptType

from embedkit.errors import DataError
from embedkit.evaluation.mteb.mirror import from_folder, with_local_data
from embedkit.evaluation.mteb.task_selection import select_tasks
from embedkit.evaluation.progress import quiet_libraries
from embedkit.evaluation.task_folders.reading import read_task_folders


@dataclass(frozen=True, slots=True)
class TaskTexts:
    """Texts of a split of a task, as a model reads them after its prompt."""

    queries: Mapping[str, str]
    documents: Mapping[str, str]
    judged: Mapping[str, Collection[str]]
    """Ids of the documents of each query that have a judgement, whatever it is."""


def open_task(name: str, folder: Path | None, data_dir: Path | None, revision: str | None) -> Any:
    """Open a task and load its data.

    Args:
        name: name of the task, or of a part of an aggregate.
        folder: task folder or repository in a mirror that the evaluation has read, if any.
        data_dir: mirror to read instead.
        revision: revision of the data that was evaluated, if it is known.

    Raises:
        DataError: the data are not there any more, or have changed.
    """
    with quiet_libraries():
        try:
            task = _opened(name, folder, data_dir)
            task.load_data()
        except Exception as error:  # Each source of data fails in its own way.
            first, *_ = str(error).splitlines() or [type(error).__name__]
            raise DataError(first) from None
    if revision is not None and task.metadata.revision != revision:
        raise DataError(f"{folder or name}: the data have changed since they were evaluated")
    cast(AbsTaskRetrieval, task).convert_v1_dataset_format_to_v2(num_proc=None)
    return task


def _opened(name: str, folder: Path | None, data_dir: Path | None) -> AbsTask:
    if folder and (folder / "task.json").is_file():
        tasks = {task.metadata.name: task for task in read_task_folders(folder)}
        return tasks[name]
    if folder and not folder.exists() and data_dir is None:
        raise DataError(f"{folder}: no such folder")
    (task,) = select_tasks(None, [name])
    return from_folder(task, folder) if folder and not data_dir else with_local_data(task, data_dir)


def texts_of(
    task: Any, split: str, subset: str, queries: Collection[str], documents: Collection[str]
) -> TaskTexts:
    """Return the texts of ``queries`` and ``documents`` in a split of a task with loaded data.

    Those that the task does not have are left out, such as readers of MindSmallReranking, who are
    queries only by mteb's scoring.
    """
    data = task.dataset[subset][split]
    with quiet_libraries():
        return TaskTexts(
            _texts(data["queries"], queries, PromptType.query),
            _texts(data["corpus"], documents, PromptType.document),
            {query: data["relevant_docs"].get(query, {}) for query in queries},
        )


def _texts(rows: Dataset, ids: Collection[str], side: PromptType) -> dict[str, str]:
    wanted = set(ids)
    numbers = [number for number, id_ in enumerate(rows["id"]) if id_ in wanted]
    chosen = rows.select(numbers)
    return dict(zip(chosen["id"], map(str, _retrieval_texts(chosen, side)), strict=True))
