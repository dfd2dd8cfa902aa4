"""Task folders: evaluation data of one's own, scored by mteb's own classes.

A folder holds ``task.json``, which names the type, and the data as JSON lines (retrieval: BEIR
layout). Everything is read and checked here, before any text is encoded.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mteb.abstasks import (
    AbsTaskClassification,
    AbsTaskClusteringLegacy,
    AbsTaskPairClassification,
    AbsTaskRetrieval,
    AbsTaskSTS,
)
from mteb.abstasks.abstask import AbsTask
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.abstasks.text.summarization import AbsTaskSummarization

from embedkit.errors import DataError
from embedkit.evaluation.task_folders import layouts
from embedkit.evaluation.task_folders.files import content_hash, read_object
from embedkit.tokens.prompts import SIDES, as_prefix


def read_task_folders(folder: Path) -> list[AbsTask]:
    """The tasks of a folder: itself when it holds ``task.json``, else each folder in it.

    Raises:
        DataError: names the file, the line and the remedy of the first mistake.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    if (folder / "task.json").is_file():
        return _tasks(folder)
    inner = sorted(path for path in folder.iterdir() if path.is_dir())
    for path in inner:
        if not (path / "task.json").is_file() and any(path.glob("*.jsonl")):
            raise DataError(f'{path}: task.json is missing; write {{"type": ...}} into it')
    tasks = [task for path in inner if (path / "task.json").is_file() for task in _tasks(path)]
    if not tasks:
        raise DataError(f"{folder}: no task.json, neither here nor in the folders below")
    return tasks


@dataclass(frozen=True)
class _Kind:
    """How a type of task is read and scored, as in MTEB(eng, v1)."""

    base: type[AbsTask]
    type: str
    main_score: str
    read: Callable[[Path], dict[str, Any]]
    """From the folder to the attributes of the task, ``dataset`` among them."""
    files: tuple[str, ...] = ("test.jsonl",)
    category: str = "t2t"


def _tasks(folder: Path) -> list[AbsTask]:
    path = folder / "task.json"
    settings = read_object(path)
    known = [*_KINDS, "classification+clustering"]
    wanted = settings.get("type")
    if wanted not in known:
        raise DataError(f"{path}: type must be one of {', '.join(known)} (got {wanted!r})")
    name = folder.resolve().name
    if wanted in _KINDS:
        return [_task(folder, name, settings, _KINDS[wanted])]
    return [_task(folder, f"{name}_{one}", settings, _KINDS[one]) for one in wanted.split("+")]


def _task(folder: Path, name: str, settings: Mapping[str, Any], kind: _Kind) -> AbsTask:
    prompts = _prompts(folder / "task.json", settings, sided=kind.base is AbsTaskRetrieval)
    attributes = kind.read(folder)
    revision = content_hash([folder / file for file in ("task.json", *kind.files)])
    metadata = TaskMetadata.model_validate(
        {
            "name": name,
            "description": f"The task folder {folder}, licence {settings.get('license')}",
            "dataset": {"path": str(folder), "revision": revision},
            "type": kind.type,
            "category": kind.category,
            "eval_splits": ["test"],
            "eval_langs": ["eng-Latn"],
            "main_score": kind.main_score,
        }
    )
    # A class for each folder, because mteb keeps what describes a task on its class.
    own = {"metadata": metadata, "own_prompts": prompts, **attributes, "data_loaded": True}
    task: AbsTask = type(kind.base.__name__, (kind.base,), own)()
    return task


def _prompts(path: Path, settings: Mapping[str, Any], *, sided: bool) -> dict[str, str]:
    """The folder's own prefixes, by side; ``text`` is the side of tasks that have none."""
    key = "prompts" if "prompts" in settings else "instruction"
    value = settings.get(key)
    if value is None:
        return {}
    sides = dict.fromkeys(SIDES, value) if isinstance(value, str) else value
    if not isinstance(sides, dict) or not sides or not set(sides) <= set(SIDES):
        raise DataError(f"{path}: {key}: write a string, or an object of query and document")
    if not all(isinstance(text, str) for text in sides.values()):
        raise DataError(f"{path}: {key}: query and document must be strings")
    prefixes = {side: text if key == "prompts" else as_prefix(text) for side, text in sides.items()}
    return prefixes if sided else {"text": prefixes.get("query", "")}


_KINDS = {
    "retrieval": _Kind(
        AbsTaskRetrieval,
        "Retrieval",
        "ndcg_at_10",
        layouts.retrieval,
        files=("corpus.jsonl", "queries.jsonl", "qrels.tsv"),
    ),
    "reranking": _Kind(AbsTaskRetrieval, "Reranking", "map_at_1000", layouts.reranking),
    "sts": _Kind(AbsTaskSTS, "STS", "cosine_spearman", layouts.sts),
    "pair_classification": _Kind(
        AbsTaskPairClassification, "PairClassification", "max_ap", layouts.pair_classification
    ),
    "classification": _Kind(
        AbsTaskClassification,
        "Classification",
        "accuracy",
        layouts.classification,
        files=("train.jsonl", "test.jsonl"),
        category="t2c",
    ),
    "clustering": _Kind(
        AbsTaskClusteringLegacy, "Clustering", "v_measure", layouts.clustering, category="t2c"
    ),
    "summarization": _Kind(
        AbsTaskSummarization, "Summarization", "cosine_spearman", layouts.summarization
    ),
}
