"""The files of a task folder, type by type, as the attributes of an mteb task.

Each function reads and checks one layout; what it returns is set on the task's class.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict

from embedkit.errors import DataError
from embedkit.evaluation.task_folders.files import Row, read_qrels, read_rows


def retrieval(folder: Path) -> dict[str, Any]:
    corpus: dict[str, dict[str, str]] = {}
    for row in read_rows(folder / "corpus.jsonl"):
        identifier = _new_identifier(row, corpus)
        title = row.text("title", may_be_empty=True) if row.values.get("title") else ""
        text = row.text("text", may_be_empty=True)
        corpus[identifier] = {"id": identifier, "title": title, "text": text}
    queries: dict[str, dict[str, str]] = {}
    for row in read_rows(folder / "queries.jsonl"):
        identifier = _new_identifier(row, queries)
        queries[identifier] = {"id": identifier, "text": row.text("text")}
    relevant: dict[str, dict[str, int]] = {}
    for row, query, document, relevance in read_qrels(folder / "qrels.tsv"):
        if query not in queries:
            raise row.error(f"the query {query!r} is not in queries.jsonl: add it or drop the line")
        if document not in corpus:
            raise row.error(
                f"the document {document!r} is not in corpus.jsonl: add it or drop the line"
            )
        relevant.setdefault(query, {})[document] = relevance
    if not any(score > 0 for scores in relevant.values() for score in scores.values()):
        raise DataError(f"{folder / 'qrels.tsv'}: no score above 0, so no document is relevant")
    return _retrieval_dataset([*corpus.values()], [*queries.values()], relevant, None)


def _new_identifier(row: Row, known: Mapping[str, object]) -> str:
    identifier = row.identifier()
    if identifier in known:
        raise row.error(f"_id {identifier!r} stands twice in the file: ids must be unique")
    return identifier


def reranking(folder: Path) -> dict[str, Any]:
    documents: dict[str, str] = {}
    queries: list[dict[str, str]] = []
    relevant: dict[str, dict[str, int]] = {}
    candidates: dict[str, list[str]] = {}
    for row in read_rows(folder / "test.jsonl"):
        query = f"q{row.line}"
        judged = dict.fromkeys(row.texts("positive"), 1)
        for text in row.texts("negative"):
            if judged.get(text) == 1:
                raise row.error(f"{text[:60]!r} is both positive and negative: drop one of them")
            judged[text] = 0
        queries.append({"id": query, "text": row.text("query")})
        ids = {text: documents.setdefault(text, f"d{len(documents)}") for text in judged}
        relevant[query] = {ids[text]: relevance for text, relevance in judged.items()}
        candidates[query] = list(ids.values())
    corpus = [{"id": id_, "title": "", "text": text} for text, id_ in documents.items()]
    return _retrieval_dataset(corpus, queries, relevant, candidates)


def _retrieval_dataset(
    corpus: list[dict[str, str]],
    queries: list[dict[str, str]],
    relevant: dict[str, dict[str, int]],
    candidates: dict[str, list[str]] | None,
) -> dict[str, Any]:
    split = {
        "corpus": Dataset.from_list(corpus),
        "queries": Dataset.from_list(queries),
        "relevant_docs": relevant,
        "top_ranked": candidates,
    }
    return {"dataset": {"default": {"test": split}}}


def sts(folder: Path) -> dict[str, Any]:
    path = folder / "test.jsonl"
    rows: list[dict[str, Any]] = [
        {
            "sentence1": row.text("sentence1"),
            "sentence2": row.text("sentence2"),
            "score": float(row.number("score")),
        }
        for row in read_rows(path)
    ]
    return _test(rows) | _score_range(path, "score", [[row["score"] for row in rows]])


def _score_range(path: Path, key: str, groups: list[list[float]]) -> dict[str, float]:
    """The ends of the scale that mteb maps to 0 and 1. Scores are ranked within a group."""
    if all(len(set(group)) < 2 for group in groups):
        raise DataError(f"{path}: every {key} is the same, so there is no order to predict")
    every = [score for group in groups for score in group]
    return {"min_score": min(every), "max_score": max(every)}


def pair_classification(folder: Path) -> dict[str, Any]:
    path = folder / "test.jsonl"
    rows: list[dict[str, Any]] = []
    for row in read_rows(path):
        label = row.values.get("label")
        if label not in (0, 1):
            raise row.error(f"label must be 0 or 1 (got {label!r})")
        texts = {key: row.text(key) for key in ("sentence1", "sentence2")}
        rows.append({**texts, "labels": int(label)})
    if len({row["labels"] for row in rows}) < 2:
        raise DataError(f"{path}: every label is {rows[0]['labels']}; pairs of both are needed")
    return _test(rows)


def classification(folder: Path) -> dict[str, Any]:
    labels: Counter[str | int] = Counter()
    lone: dict[str | int, Row] = {}
    train: list[dict[str, Any]] = []
    for row in read_rows(folder / "train.jsonl"):
        train.append({"text": _labelled_text(row), "label": _label(row, train)})
        labels[row.label()] += 1
        lone[row.label()] = row
    for label, count in labels.items():
        if count == 1:
            raise lone[label].error(f"the label {label!r} has one example: add some or drop it")
    if len(labels) < 2:
        raise DataError(f"{folder / 'train.jsonl'}: at least two labels are needed")
    test: list[dict[str, Any]] = []
    for row in read_rows(folder / "test.jsonl"):
        if row.label() not in labels:
            raise row.error(f"the label {row.label()!r} is not in train.jsonl: no one can learn it")
        test.append({"text": _labelled_text(row), "label": row.label()})
    # mteb's average precision fails on two labels that are words, so labels become numbers.
    numbers = {label: number for number, label in enumerate(sorted(labels, key=str))}
    splits = {
        name: Dataset.from_list([row | {"label": numbers[row["label"]]} for row in rows])
        for name, rows in (("train", train), ("test", test))
    }
    return {"dataset": DatasetDict(splits)}


def clustering(folder: Path) -> dict[str, Any]:
    path = folder / "test.jsonl"
    rows: list[dict[str, Any]] = []
    for row in read_rows(path):
        rows.append({"text": _labelled_text(row), "label": _label(row, rows)})
    labels = [row["label"] for row in rows]
    if not 2 <= len(set(labels)) < len(labels):
        raise DataError(f"{path}: at least two labels are needed, and more texts than labels")
    # mteb scores several sets and takes the mean; a folder is one set.
    return _test([{"sentences": [row["text"] for row in rows], "labels": labels}])


def _labelled_text(row: Row) -> str:
    # Collections of reviews do hold empty ones, and mteb's own data sets are scored with them.
    return row.text("text", may_be_empty=True)


def _label(row: Row, before: list[dict[str, Any]]) -> str | int:
    label = row.label()
    if before and type(label) is not type(before[0]["label"]):
        raise row.error(f"label {label!r}: strings and numbers are mixed; write all of them alike")
    return label


def summarization(folder: Path) -> dict[str, Any]:
    path = folder / "test.jsonl"
    rows: list[dict[str, Any]] = []
    for row in read_rows(path):
        summaries, relevance = row.texts("machine_summaries"), row.numbers("relevance")
        if len(summaries) != len(relevance):
            raise row.error(
                f"{len(summaries)} machine_summaries but {len(relevance)} relevance: one each"
            )
        rows.append(
            {
                "text": row.text("text"),
                "human_summaries": row.texts("human_summaries"),
                "machine_summaries": summaries,
                "relevance": [float(score) for score in relevance],
            }
        )
    return _test(rows) | _score_range(path, "relevance", [row["relevance"] for row in rows])


def _test(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"dataset": DatasetDict({"test": Dataset.from_list(rows)})}
