"""Reads task folders, a user's own evaluation data, as tasks of mteb's classes.

A folder holds ``task.json``, which names the type, and the data as JSON lines (retrieval: BEIR
layout). Everything is read and checked before any text is encoded.
"""

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
from embedkit.evaluation.task_folders.metrics import METRICS, TWO_LABELS
from embedkit.storage.hashing import sha256_of_file, sha256_of_text
from embedkit.tokens.prompts import SIDES, as_prefix


def read_task_folders(folder: Path) -> list[AbsTask]:
    """Return the task of a folder that holds ``task.json``, or else of each folder in it.

    Raises:
        DataError: names the file, the line and the remedy of the first mistake.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    if (folder / "task.json").is_file():
        return _tasks(folder)
    tasks: list[AbsTask] = []
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        if (path / "task.json").is_file():
            tasks += _tasks(path)
        elif any(path.glob("*.jsonl")):
            raise DataError(f'{path}: task.json is missing; write {{"type": ...}} into it')
    if not tasks:
        raise DataError(f"{folder}: no task.json, neither here nor in the folders below")
    return tasks


class _Kind(NamedTuple):
    """Reader and metric of a type of task, as in MTEB(eng, v1)."""

    base: type[AbsTask]
    type: str
    main_score: str
    read: Callable[[Path], dict[str, Any]]
    """Reads a folder and returns attributes of the task, among them ``dataset``."""
    files: Sequence[str] = ("test.jsonl",)


_BEIR, _SPLITS = ("corpus.jsonl", "queries.jsonl", "qrels.tsv"), ("train.jsonl", "test.jsonl")
_KINDS = {
    "retrieval": _Kind(AbsTaskRetrieval, "Retrieval", "ndcg_at_10", layouts.retrieval, _BEIR),
    "reranking": _Kind(AbsTaskRetrieval, "Reranking", "map_at_1000", layouts.reranking),
    "sts": _Kind(AbsTaskSTS, "STS", "cosine_spearman", layouts.sts),
    "pair_classification": _Kind(
        AbsTaskPairClassification, "PairClassification", "max_ap", layouts.pair_classification
    ),
    "classification": _Kind(
        AbsTaskClassification, "Classification", "accuracy", layouts.classification, _SPLITS
    ),
    "clustering": _Kind(AbsTaskClusteringLegacy, "Clustering", "v_measure", layouts.clustering),
    "summarization": _Kind(
        AbsTaskSummarization, "Summarization", "cosine_spearman", layouts.summarization
    ),
}


def kinds_by_name(folder: str, type_: str) -> dict[str, str]:
    """Return the kind of each task that a folder of a type holds, by the task's name."""
    kinds = type_.split("+")
    return {folder: type_} if len(kinds) == 1 else {f"{folder}_{kind}": kind for kind in kinds}


def _tasks(folder: Path) -> list[AbsTask]:
    path = folder / "task.json"
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {error.lineno}: not valid JSON: {error.msg}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8: {error.reason}; save the file as UTF-8") from None
    if not isinstance(settings, dict):
        raise DataError(f"{path}: must be a JSON object, like {{...}}")
    known = [*_KINDS, "classification+clustering"]
    wanted = settings.get("type")
    if wanted not in known:
        raise DataError(f"{path}: type must be one of {', '.join(known)} (got {wanted!r})")
    kinds = kinds_by_name(folder.resolve().name, wanted)
    return [_task(folder, name, kind, settings) for name, kind in kinds.items()]


def _task(folder: Path, name: str, wanted: str, settings: Mapping[str, Any]) -> AbsTask:
    kind = _KINDS[wanted]
    path = folder / "task.json"
    prompts = _prompts(path, settings, sided=kind.base is AbsTaskRetrieval)
    metric, ignored = _metric(path, settings, wanted), _ignored_ids(path, settings, wanted)
    attributes = kind.read(folder) | ignored
    if metric in TWO_LABELS and (labels := len(set(attributes["dataset"]["test"]["label"]))) > 2:
        raise DataError(f"{path}: metric: {metric} is for two labels, and there are {labels}")
    hashes = [f"{file} {sha256_of_file(folder / file)}\n" for file in ("task.json", *kind.files)]
    metadata = TaskMetadata.model_validate(
        {
            "name": name,
            "description": f"The task folder {folder}, licence {settings.get('license')}",
            "dataset": {"path": str(folder), "revision": sha256_of_text("".join(hashes))},
            "type": kind.type,
            "category": "t2c" if kind.type in ("Classification", "Clustering") else "t2t",
            "eval_splits": ["test"],
            "eval_langs": ["eng-Latn"],
            "main_score": metric,
        }
    )
    # A class for each folder, because mteb stores what describes a task on its class. A task is
    # pickled for another rank, which reads the folder itself.
    attributes |= {"metadata": metadata, "own_prompts": prompts, "data_loaded": True}
    attributes["__reduce__"] = lambda _: (_task, (folder, name, wanted, settings))
    task: AbsTask = type(kind.base.__name__, (kind.base,), attributes)()
    return task


def _metric(path: Path, settings: Mapping[str, Any], wanted: str) -> str:
    """Return the metric that the folder asks for, or that of such tasks in MTEB(eng, v1)."""
    metric = settings.get("metric", _KINDS[wanted].main_score)
    if metric not in METRICS[wanted]:
        near = difflib.get_close_matches(str(metric), METRICS[wanted], n=3, cutoff=0.3)
        offered = ", ".join(near or METRICS[wanted][:3])
        raise DataError(f"{path}: metric: {wanted} has no {metric!r}, but for example {offered}")
    return str(metric)


def _ignored_ids(path: Path, settings: Mapping[str, Any], wanted: str) -> dict[str, bool]:
    """Return mteb's attribute for retrieval in which the queries are documents themselves."""
    key = "ignore_identical_ids"
    if key not in settings:
        return {}
    if wanted != "retrieval":
        raise DataError(f"{path}: {key}: is for retrieval; leave it out of a task of {wanted}")
    if not isinstance(settings[key], bool):
        raise DataError(f"{path}: {key}: must be true or false (got {settings[key]!r})")
    return {key: settings[key]}


def _prompts(path: Path, settings: Mapping[str, Any], *, sided: bool) -> dict[str, str]:
    """Return the folder's own prefixes by side; tasks without sides have the side ``text``."""
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
