"""Retrieval's search of a whole corpus: exact, on all ranks, with the scores of mteb's own."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from mteb.models.search_wrappers import SearchEncoderWrapper
from mteb.timing import TimingStack
from mteb.types import PromptType
from numpy.typing import NDArray
from torch import Tensor

from embedkit import distributed
from embedkit.data.exact_search import ExactSearch, best_by, ordered
from embedkit.evaluation.mteb.text_statistics import documents_in, texts_at

Similarity = Callable[[Tensor, Tensor], Tensor]
"""Function that compares all queries with all documents: ``(q, D)``, ``(n, D)`` -> ``(q, n)``."""

_DOCUMENTS = 2**18
"""Number of documents that are encoded and searched at a time: 0.8 GB at 768 dimensions."""


class CorpusSearch(SearchEncoderWrapper):
    """mteb's search by an encoder, with its loops over a corpus replaced.

    mteb keeps the best documents of each query in Python, on rank 0. Here every rank compares its
    share of the documents with all queries on its device. As in mteb, documents of equal scores
    rank by their ids, the greater first; of those around the last rank, one more is kept.
    """

    def _full_corpus_search(
        self,
        *,
        query_idx_to_id: Mapping[int, str],
        query_embeddings: Any,
        hf_subset: str,
        hf_split: str,
        top_k: int,
        timer: TimingStack,
        **_: Any,
    ) -> dict[str, list[tuple[float, str]]]:
        with timer("Searching corpus", split=hf_split, subset=hf_subset):
            scores, found, ids = self._top(query_embeddings, top_k)
        return {
            query_idx_to_id[number]: [
                (score, ids[place]) for score, place in zip(*pair, strict=True) if place >= 0
            ]
            for number, pair in enumerate(zip(scores, found, strict=True))
        }

    def _top(
        self, queries: NDArray[np.float32], count: int
    ) -> tuple[list[list[float]], list[list[int]], list[str]]:
        """Return scores and numbers of each query's best documents, and the ids by number."""
        model: Any = self.model
        corpus = self.task_corpus
        assert isinstance(corpus, Dataset)
        ids, table = corpus["id"][:], documents_in(corpus)
        # By their ids, so that equal documents of two corpora are in one block of both.
        rows = np.array(sorted(range(len(ids)), key=ids.__getitem__, reverse=True), np.int64)
        scores = torch.empty(len(queries), 0)
        numbers = torch.empty(len(queries), 0, dtype=torch.int64)
        for start in range(0, len(rows), _DOCUMENTS):
            order = np.argsort(rows[start : start + _DOCUMENTS])  # Arrow is read in its own order.
            texts = texts_at(table, rows[start + order])
            documents = model.embed(texts, PromptType.document)
            found = _best_of_all_ranks(queries, documents, count + 1, model.similarity)
            by_id = torch.from_numpy(start + order)[found[1].clamp(min=0)]
            scores = torch.cat([scores, found[0]], dim=1)
            numbers = torch.cat([numbers, torch.where(found[1] < 0, -1, by_id)], dim=1)
            scores, numbers = ordered(scores, numbers, count + 1)
        return (scores[:, :count].tolist(), numbers[:, :count].tolist(), [ids[row] for row in rows])


def _best_of_all_ranks(
    queries: NDArray[np.float32], documents: NDArray[np.float32], count: int, similarity: Similarity
) -> tuple[Tensor, Tensor]:
    """Return the best documents of each query, as ``ExactSearch.best`` does, found by all ranks.

    Shapes: ``(q, D)``, ``(n, D)`` -> scores and numbers ``(q, count)``, on the CPU.
    """
    arguments = queries, len(documents), count, similarity
    scores, numbers = distributed.together(_best_of_share, documents, *arguments)
    # From (ranks x q, count), in the order of the ranks, to (q, ranks x count).
    shape = (-1, len(queries), count)
    flat = [each.reshape(shape).transpose(0, 1).flatten(1) for each in (scores, numbers)]
    scores, numbers = ordered(flat[0], flat[1], count)
    return scores.cpu(), numbers.cpu()


def _best_of_share(
    documents: Any,
    part: distributed.Part,
    queries: NDArray[np.float32],
    of: int,
    count: int,
    similarity: Similarity,
) -> tuple[Tensor, Tensor]:
    """Search a rank's share of the ``documents`` of rank 0, so many ``of`` them in all."""
    share = distributed.scatter(documents, part)
    search = ExactSearch(share, distributed.local_device(), best_by(similarity))
    scores, numbers = search.best(torch.from_numpy(queries), count)
    first = distributed.share_of(of, *part).start
    return scores, torch.where(numbers < 0, -1, numbers + first)
