"""Takes the result of each query from mteb while it scores a retrieval or reranking task."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mteb._evaluators.retrieval_metrics import calculate_retrieval_scores
from mteb.abstasks import AbsTaskRetrieval
from mteb.abstasks.abstask import AbsTask

from embedkit.evaluation.query_results import (
    FRONT,
    QueryResult,
    read_query_results,
    write_query_results,
)

Judgements = Mapping[str, Mapping[str, int]]
"""Relevance of documents by query: a document of relevance 0 is judged, and not relevant."""
Retrieved = Mapping[str, Mapping[str, float]]
"""Similarities of the retrieved documents by query."""

_OF_SUBQUERIES = "max_over_subqueries_"
_NAMES = {
    "ndcg_at": "ndcg_cut",
    "map_at": "map_cut",
    "recall_at": "recall",
    "precision_at": "P",
    "hit_rate_at": "success",
}
"""pytrec_eval's names of mteb's metrics that are means over queries."""


@contextmanager
def recorded_queries(task: AbsTask, path: Path) -> Iterator[None]:
    """Write the result of each query to ``path`` while mteb scores a task within the block.

    mteb hands the scores of all queries to ``task_specific_scores``, and writes its own result
    later: where mteb's file is, this one is too. mteb goes on with the subsets that its file lacks,
    and so does this; if queries of the others are lost, mteb's file is deleted, so that all are
    scored. Tasks of other types have no queries, and a main score that is no mean over queries has
    none of one query; nothing is written then.
    """
    metric = task.metadata.main_score
    if not isinstance(task, AbsTaskRetrieval) or _trec_name(metric) is None:
        yield
        return
    ask_task, results = task.task_specific_scores, _scored_before(path)

    def record(
        scores: dict[str, dict[str, float]],
        qrels: dict[str, dict[str, int]],
        retrieved: dict[str, dict[str, float]],
        *,
        hf_split: str,
        hf_subset: str,
    ) -> dict[str, float]:
        results.extend(query_results(metric, scores, qrels, retrieved, hf_split, hf_subset))
        write_query_results(path, metric, results)
        return ask_task(scores, qrels, retrieved, hf_split=hf_split, hf_subset=hf_subset)

    # The object is mteb's, which gives it to all who ask for the task: it is left as it was.
    vars(task)["task_specific_scores"] = record
    try:
        yield
    finally:
        del vars(task)["task_specific_scores"]


def _scored_before(path: Path) -> list[QueryResult]:
    """Return the queries of the subsets in mteb's file; delete that file if some have none."""
    of_mteb, kept = path.with_suffix(".json"), list[QueryResult]()
    if not of_mteb.exists():
        return []
    scores = json.loads(of_mteb.read_text(encoding="utf-8"))["scores"]
    scored = {(split, each["hf_subset"]) for split, found in scores.items() for each in found}
    with suppress(ValueError):  # The file is not there, or no longer whole.
        kept = [each for each in read_query_results(path) if (each.split, each.subset) in scored]
    if scored - {(each.split, each.subset) for each in kept}:
        of_mteb.unlink()
        return []
    return kept


def query_results(
    metric: str,
    scores: Mapping[str, Mapping[str, float]],
    qrels: Judgements,
    retrieved: Retrieved,
    split: str,
    subset: str,
) -> list[QueryResult]:
    """Return what mteb found for each query; ``scores`` are pytrec_eval's by query and name."""
    if metric.startswith(_OF_SUBQUERIES):
        qrels, retrieved = _merge_subqueries(qrels, retrieved)
        cutoff = int(metric.rsplit("_", 1)[1])
        scores = calculate_retrieval_scores(retrieved, qrels, [cutoff]).all_scores
    name = _trec_name(metric)
    found = []
    for query in scores:
        # Of documents with one similarity, pytrec_eval puts the one with the greater id first.
        order = sorted(retrieved[query].items(), key=lambda item: item[::-1], reverse=True)
        relevant = {document: grade for document, grade in qrels[query].items() if grade > 0}
        ranks = (rank for rank, (document, _) in enumerate(order, 1) if document in relevant)
        first, front = next(ranks, None), order[:FRONT]
        found.append(
            QueryResult(
                split,
                subset,
                query,
                score=_reciprocal(first, metric) if name == "mrr" else scores[query][str(name)],
                first_relevant=first,
                front=[document for document, _ in front],
                front_scores=[similarity for _, similarity in front],
                relevant=list(relevant),
            )
        )
    return found


def _trec_name(metric: str) -> str | None:
    """Return pytrec_eval's name of a metric, or ``mrr``; ``None`` if it is no mean over queries."""
    stem, _, cutoff = metric.removeprefix(_OF_SUBQUERIES).rpartition("_")
    if metric == "accuracy":  # mteb's name of recall_at_1 in tasks with one answer.
        return "recall_1"
    if stem == "mrr_at":
        return "mrr"
    return f"{_NAMES[stem]}_{cutoff}" if stem in _NAMES and cutoff.isdigit() else None


def _reciprocal(rank: int | None, metric: str) -> float:
    cutoff = int(metric.rsplit("_", 1)[1])
    return 1 / rank if rank is not None and rank <= cutoff else 0.0


def _merge_subqueries(
    qrels: Judgements, retrieved: Retrieved
) -> tuple[dict[str, Mapping[str, int]], dict[str, dict[str, float]]]:
    """Join queries whose ids differ after the last ``_`` alone, as mteb's ``max_over_subqueries``.

    A document gets its highest similarity to any of them. MindSmallReranking has a subquery for
    each news article that a user has read.
    """
    merged: defaultdict[str, dict[str, float]] = defaultdict(dict)
    judged: dict[str, Mapping[str, Any]] = {}
    for query, documents in qrels.items():
        whole = query.rpartition("_")[0]
        judged[whole] = documents
        best = merged[whole]
        for document, similarity in retrieved[query].items():
            best[document] = max(similarity, best.get(document, similarity))
    return judged, dict(merged)
