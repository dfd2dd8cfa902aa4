"""The search that validates a run: queries, documents, and which documents answer which query."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit import rng
from embedkit.data.pairs.leaks import fold
from embedkit.data.pairs.records import Record, Records
from embedkit.evaluation.encoding.encoders import DistributedEncoder
from embedkit.evaluation.encoding.in_context import ContextualEncoder
from embedkit.recipe import Validation


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """Queries and documents of one source, each text once.

    Shapes: ``relevant`` and ``hidden`` ``(queries, documents)``: whether a document answers a
    query, and whether it is the query itself, which would find itself and is not ranked.
    """

    query_prompt: str
    document_prompt: str
    queries: list[str]
    documents: list[str]
    relevant: NDArray[np.bool_]
    hidden: NDArray[np.bool_]

    def ndcg_at_10(self, encoder: DistributedEncoder) -> float:
        """Return the mean nDCG@10 of the queries under a model whose vectors have unit norm."""
        queries, documents = self.queries, self.documents
        in_context = {}
        if isinstance(encoder, ContextualEncoder):
            in_context["context"] = encoder.build_context(documents, self.document_prompt)
        asked = encoder.encode(queries, prompt=self.query_prompt, **in_context)
        found = encoder.encode(documents, prompt=self.document_prompt, **in_context)
        scores = np.where(self.hidden, -np.inf, asked @ found.T)
        return float(ndcg(scores, self.relevant).mean())


def search_of(records: Records, settings: Validation, seed: int) -> Search | None:
    """Draw the search of a source's validation rows; ``None`` if it has no query with an answer.

    A query's answers are its positives, and, where rows have labels, the positives of its label.
    Documents are the positives and hard negatives of the rows. Texts that differ only in case and
    white space are one text. The same rows, settings and seed give the same search.
    """
    rows = drawn_rows(records, seed)
    queries, documents = _drawn_texts(rows, settings)
    if not queries:
        return None
    query_numbers = {key: number for number, key in enumerate(queries)}
    document_numbers = {key: number for number, key in enumerate(documents)}
    relevant = np.zeros((len(queries), len(documents)), dtype=bool)
    hidden = np.zeros_like(relevant)
    asking: defaultdict[str, set[int]] = defaultdict(set)
    answering: defaultdict[str, set[int]] = defaultdict(set)
    for row in rows:
        query = query_numbers.get(fold(row.query))
        document = document_numbers.get(fold(row.positive))
        if query is not None and document is not None:
            relevant[query, document] = True
        if row.label is not None and query is not None:
            asking[row.label].add(query)
        if row.label is not None and document is not None:
            answering[row.label].add(document)
    for label, numbers in asking.items():
        relevant[np.ix_(sorted(numbers), sorted(answering[label]))] = True
    for key, number in query_numbers.items():
        if key in document_numbers:
            hidden[number, document_numbers[key]] = True
    return Search(
        records.prompts.query,
        records.prompts.document,
        list(queries.values()),
        list(documents.values()),
        relevant & ~hidden,
        hidden,
    )


def drawn_rows(records: Records, seed: int) -> list[Record]:
    """Return all rows of a source in an order drawn by ``seed``."""
    key = rng.fold_in(seed, "validation", records.name)
    return records.take(rng.permuted(np.arange(len(records)), len(records), key))


def ndcg(scores: NDArray[np.floating], relevant: NDArray[np.bool_], k: int = 10) -> NDArray[Any]:
    """Return the normalized discounted cumulative gain at ``k`` of each query.

    Gains are 1 for a relevant document and 0 for another (Järvelin and Kekäläinen, 2002, with the
    discount 1 / log2(1 + rank) of trec_eval). Each query needs a relevant document.

    Shapes: ``(q, n)`` and ``(q, n)`` -> ``(q,)``.
    """
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    discounts = 1 / np.log2(np.arange(2, order.shape[1] + 2))
    gained = np.take_along_axis(relevant, order, axis=1) @ discounts
    best = np.minimum(relevant.sum(axis=1), order.shape[1])
    return gained / np.cumsum(discounts)[best - 1]


def _drawn_texts(rows: list[Record], settings: Validation) -> tuple[dict[str, str], dict[str, str]]:
    """Return queries, and documents that answer each of them, by their folded texts."""
    answers: defaultdict[str, dict[str, str]] = defaultdict(dict)
    texts: dict[str, str] = {}
    for row in rows:
        query, positive = fold(row.query), fold(row.positive)
        if query != positive:
            answers[query][positive] = row.positive
        for text in (row.positive, *row.negatives):
            texts.setdefault(fold(text), text)
    queries: dict[str, str] = {}
    documents: dict[str, str] = {}
    for row in rows:
        query = fold(row.query)
        lacking = answers[query].keys() - documents.keys()
        if answers[query] and len(documents) + len(lacking) <= settings.max_documents:
            queries[query] = row.query
            documents |= answers[query]
        if len(queries) == settings.max_queries:
            break
    for key, text in texts.items():
        if len(documents) == settings.max_documents:
            break
        documents.setdefault(key, text)
    return queries, documents
