"""Contrastive objective: a batch of queries and documents in, gradients and metrics out."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from embedkit import distributed, keyed
from embedkit.data.batches import ContrastiveBatch
from embedkit.gradcache import Replay
from embedkit.losses import false_negatives, info_nce, similarity
from embedkit.recipe import Contrastive


@dataclass(frozen=True, slots=True)
class _Shared:
    """What the loss sees of all ranks, and where this rank's rows begin in it.

    Shapes: Q queries and N documents over all ranks (of this rank alone without ``cross_device``);
    ``stated`` ``(b, 2)`` holds the hashes of query and positive of every row of the whole batch.
    """

    queries: Tensor
    documents: Tensor
    query_hashes: Tensor
    document_hashes: Tensor
    stated: Tensor
    owners: Tensor
    labels: Tensor
    query_labels: Tensor
    first_query: int
    first_document: int


class ContrastiveObjective:
    """InfoNCE over positives, hard negatives and in-batch documents (paper, section 5.2.1).

    The loss is the mean over the queries of all ranks once gradients are averaged over ranks.
    """

    def __init__(self, config: Contrastive) -> None:
        self._config = config

    def backward(
        self, model: nn.Module, batch: ContrastiveBatch, *, key: int, scale: float
    ) -> dict[str, Tensor]:
        """Add ``scale`` times the gradient of the batch's loss to the parameters.

        Args:
            model: tokens to unit vectors.
            batch: this rank's share.
            key: names the randomness of this batch on this rank.
            scale: 1 over the batches of a step.

        Returns:
            ``loss``, the mean over all ranks' queries; ``accuracy``, the share of queries whose
            positive scores highest; ``tokens`` read over all ranks.
        """
        encoded = [
            Replay(model, tokens, budget=self._config.chunk_tokens, key=keyed.key(key, role))
            for role, tokens in (("queries", batch.queries), ("documents", batch.documents))
        ]
        queries, documents = encoded
        total, correct = self._loss(batch, queries.embeddings, documents.embeddings)
        # Gradients are averaged over ranks later, so each rank's sum counts world_size-fold.
        (total * (scale * distributed.world_size() / batch.size)).backward()
        for each in encoded:
            each.backward()
        tokens = batch.queries.num_tokens + batch.documents.num_tokens
        sums = torch.stack([total.detach(), correct.to(total), total.new_tensor(tokens)])
        sums = distributed.sum_over_ranks(sums)
        return {
            "loss": sums[0] / batch.size,
            "accuracy": sums[1] / batch.size,
            "tokens": sums[2],
        }

    def _loss(
        self, batch: ContrastiveBatch, queries: Tensor, documents: Tensor
    ) -> tuple[Tensor, Tensor]:
        """This rank's sum of losses, and how many of its queries rank their positive first."""
        shared = self._share(batch, queries, documents)
        positives = shared.first_document + torch.arange(len(queries), device=queries.device)
        excluded = self._excluded(batch, shared)
        mine = slice(shared.first_query, shared.first_query + len(queries))
        temperature = self._config.temperature
        loss = info_nce(
            queries,
            shared.documents,
            positives,
            temperature=temperature,
            excluded=excluded[mine],
            reduction="sum",
        )
        # Without in-batch negatives a positive has no other query to be told from.
        if self._config.symmetric and batch.in_batch_negatives:
            reverse = info_nce(
                documents[: len(queries)],
                shared.queries,
                torch.arange(mine.start, mine.stop, device=queries.device),
                temperature=temperature,
                excluded=excluded[:, positives].T,
                reduction="sum",
            )
            loss = (loss + reverse) / 2
        with torch.no_grad():
            scores = similarity(queries, shared.documents, temperature)
            own = scores.gather(1, positives[:, None])
            beaten = (scores > own) & ~excluded[mine]
            correct = (~beaten.any(dim=1)).sum()
        return loss, correct

    def _share(self, batch: ContrastiveBatch, queries: Tensor, documents: Tensor) -> _Shared:
        across = distributed.gather if self._config.cross_device else _alone
        count = len(queries)
        pairs = torch.stack([batch.query_hashes, batch.document_hashes[:count]], dim=1)
        # What is true on one rank is true on all, whether or not they share documents.
        stated, _ = distributed.gather(pairs)
        all_queries, first_query = across(queries)
        facts = torch.stack([batch.query_hashes, batch.labels[:count]], dim=1)
        all_facts, _ = across(facts)
        all_documents, first_document = across(documents)
        own = torch.stack([batch.document_hashes, batch.owners + first_query, batch.labels], dim=1)
        all_own, _ = across(own)
        return _Shared(
            queries=all_queries,
            documents=all_documents,
            query_hashes=all_facts[:, 0],
            document_hashes=all_own[:, 0],
            stated=stated,
            owners=all_own[:, 1],
            labels=all_own[:, 2],
            query_labels=all_facts[:, 1],
            first_query=first_query,
            first_document=first_document,
        )

    def _excluded(self, batch: ContrastiveBatch, shared: _Shared) -> Tensor:
        """Which documents are no negatives of which queries, ``(Q, N)``."""
        asked, positives = shared.stated.unbind(dim=1)
        excluded = false_negatives(shared.query_hashes, positives, asked, shared.document_hashes)
        same_label = shared.query_labels[:, None] == shared.labels
        excluded |= same_label & (shared.query_labels[:, None] != 0)
        if not batch.in_batch_negatives:
            rows = torch.arange(len(excluded), device=excluded.device)
            excluded |= rows[:, None] != shared.owners
        return excluded


def _alone(rows: Tensor) -> tuple[Tensor, int]:
    return rows, 0
