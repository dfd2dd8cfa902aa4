"""Reads and checks the files of a task folder, by one function for each type of task.

A function returns attributes of an mteb task, which are set on the task's class.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict

from embedkit.errors import DataError
from embedkit.evaluation.task_folders import files
from embedkit.evaluation.task_folders.files import Check, Row, read_rows

_QRELS = {"query-id": files.string, "corpus-id": files.string, "score": files.relevance}
_LABELLED = {"text": files.string, "label": files.label}
"""A labelled text may be empty, as in mteb's own data sets, which are scored with such texts."""


def retrieval(folder: Path) -> dict[str, Any]:
    corpus = _by_id(folder / "corpus.jsonl", {"title": files.optional_string, "text": files.string})
    queries = _by_id(folder / "queries.jsonl", {"text": files.text})
    relevant: dict[str, dict[str, int]] = {}
    for row in read_rows(folder / "qrels.tsv", _QRELS):
        query, document, relevance = (row[key] for key in _QRELS)
        if query not in queries:
            raise row.error(f"the query {query!r} is not in queries.jsonl: add it or drop the line")
        if document not in corpus:
            remedy = "add it or drop the line"
            raise row.error(f"the document {document!r} is not in corpus.jsonl: {remedy}")
        relevant.setdefault(query, {})[document] = relevance
    if not any(score > 0 for scores in relevant.values() for score in scores.values()):
        raise DataError(f"{folder / 'qrels.tsv'}: no score above 0, so no document is relevant")
    return _retrieval(corpus.values(), queries.values(), relevant, None)


def _by_id(path: Path, checks: dict[str, Check]) -> dict[str, dict[str, str]]:
    records: dict[str, dict[str, str]] = {}
    for row in read_rows(path, {"_id": files.identifier, **checks}):
        id_ = row.pop("_id")
        if id_ in records:
            raise row.error(f"_id {id_!r} stands twice in the file: ids must be unique")
        records[id_] = {"id": id_, **row}
    return records


def reranking(folder: Path) -> dict[str, Any]:
    ids: dict[str, str] = {}
    queries: list[dict[str, str]] = []
    relevant: dict[str, dict[str, int]] = {}
    checks = {"query": files.text, "positive": files.texts, "negative": files.texts}
    for row in read_rows(folder / "test.jsonl", checks):
        judged = dict.fromkeys(row["positive"], 1)
        for document in row["negative"]:
            if judged.setdefault(document, 0):
                mistake = f"{document[:60]!r} is both positive and negative"
                raise row.error(f"{mistake}: drop one of them")
        queries.append({"id": f"q{row.line}", "text": row["query"]})
        relevant[f"q{row.line}"] = {
            ids.setdefault(document, f"d{len(ids)}"): score for document, score in judged.items()
        }
    corpus = [{"id": id_, "title": "", "text": document} for document, id_ in ids.items()]
    candidates = {query: list(scores) for query, scores in relevant.items()}
    return _retrieval(corpus, queries, relevant, candidates)


def _retrieval(
    corpus: Iterable[dict[str, str]],
    queries: Iterable[dict[str, str]],
    relevant: dict[str, dict[str, int]],
    candidates: dict[str, list[str]] | None,
) -> dict[str, Any]:
    split = {
        "corpus": Dataset.from_list(list(corpus)),
        "queries": Dataset.from_list(list(queries)),
        "relevant_docs": relevant,
        "top_ranked": candidates,
    }
    return {"dataset": {"default": {"test": split}}}


def sts(folder: Path) -> dict[str, Any]:
    path = folder / "test.jsonl"
    checks = {"sentence1": files.text, "sentence2": files.text, "score": files.number}
    rows = list(read_rows(path, checks))
    return _splits(test=rows) | _score_range(path, "score", [[row["score"] for row in rows]])


def pair_classification(folder: Path) -> dict[str, Any]:
    path = folder / "test.jsonl"
    checks = {"sentence1": files.text, "sentence2": files.text, "label": files.binary_label}
    # mteb calls the column of labels "labels".
    rows = [{"labels": row.pop("label"), **row} for row in read_rows(path, checks)]
    if len({row["labels"] for row in rows}) < 2:
        raise DataError(f"{path}: every label is {rows[0]['labels']}; pairs of both are needed")
    return _splits(test=rows)


def classification(folder: Path) -> dict[str, Any]:
    train = _labelled(folder / "train.jsonl")
    counts = Counter(row["label"] for row in train)
    for row in train:
        if counts[row["label"]] == 1:
            raise row.error(f"the label {row['label']!r} has one example: add some or drop it")
    if len(counts) < 2:
        raise DataError(f"{folder / 'train.jsonl'}: at least two labels are needed")
    test = list(read_rows(folder / "test.jsonl", _LABELLED))
    for row in test:
        if row["label"] not in counts:
            mistake = f"the label {row['label']!r} is not in train.jsonl"
            raise row.error(f"{mistake}: no one can learn it")
    # mteb's average precision fails on two labels that are words, so labels become numbers.
    classes = {name: index for index, name in enumerate(sorted(counts, key=str))}
    for row in (*train, *test):
        row["label"] = classes[row["label"]]
    return _splits(train=train, test=test)


def clustering(folder: Path) -> dict[str, Any]:
    path = folder / "test.jsonl"
    rows = _labelled(path)
    labels = [row["label"] for row in rows]
    if not 2 <= len(set(labels)) < len(labels):
        raise DataError(f"{path}: at least two labels are needed, and more texts than labels")
    # mteb scores several sets and takes the mean; a folder is one set.
    return _splits(test=[{"sentences": [row["text"] for row in rows], "labels": labels}])


def _labelled(path: Path) -> list[Row]:
    rows: list[Row] = []
    for row in read_rows(path, _LABELLED):
        rows.append(row)
        if type(row["label"]) is not type(rows[0]["label"]):
            mistake = f"label {row['label']!r}: strings and numbers are mixed"
            raise row.error(f"{mistake}; write all of them alike")
    return rows


def summarization(folder: Path) -> dict[str, Any]:
    path = folder / "test.jsonl"
    checks: dict[str, Check] = {"text": files.text, "human_summaries": files.texts}
    checks |= {"machine_summaries": files.texts, "relevance": files.numbers}
    rows = []
    for row in read_rows(path, checks):
        summaries, scores = len(row["machine_summaries"]), len(row["relevance"])
        if summaries != scores:
            raise row.error(f"{summaries} machine_summaries but {scores} relevance: one each")
        rows.append(row)
    return _splits(test=rows) | _score_range(path, "relevance", [row["relevance"] for row in rows])


def _splits(**rows: list[Any]) -> dict[str, Any]:
    splits = {name: Dataset.from_list(split) for name, split in rows.items()}
    return {"dataset": DatasetDict(splits)}


def _score_range(path: Path, key: str, groups: list[list[float]]) -> dict[str, float]:
    """Return the scale that mteb maps to [0, 1]; scores are ranked within a group."""
    if all(len(set(group)) < 2 for group in groups):
        raise DataError(f"{path}: every {key} is the same, so there is no order to predict")
    scores = [score for group in groups for score in group]
    return {"min_score": min(scores), "max_score": max(scores)}
