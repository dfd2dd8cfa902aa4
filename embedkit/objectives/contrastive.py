"""Contrastive objective, which adds the gradients of a batch of queries and documents."""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from embedkit import distributed, rng
from embedkit.data.pairs.contrastive_batches import ContrastiveBatch
from embedkit.objectives.filtering import Filter
from embedkit.objectives.gradcache import Replay
from embedkit.objectives.losses import false_negatives, info_nce, similarity, truncated
from embedkit.recipe import InfoNCE

_SCORES = 2**22
"""Number of query-document scores held in memory at a time: 16 MiB in fp32, and a few times that
with the tensors derived from them."""
_ALL = slice(None)


@dataclass(frozen=True, slots=True)
class _Gathered:
    """Queries and documents of all ranks, or of this rank alone without ``cross_device``.

    Shapes: Q queries and N documents; ``known_pairs`` ``(b, 2)``: the hashes of query and positive
    of every row of the whole batch; ``owners`` ``(N,)``: each document's row among the queries;
    ``mine``: the range of this rank's q queries; ``positives`` ``(q,)``: the rows of their
    positives among the documents.
    """

    queries: Tensor
    documents: Tensor
    query_hashes: Tensor
    document_hashes: Tensor
    known_pairs: Tensor
    owners: Tensor
    labels: Tensor
    query_labels: Tensor
    mine: slice
    positives: Tensor
    in_batch_negatives: bool
    filter: Filter | None

    def known(self, queries: Tensor | slice, documents: Tensor | slice) -> Tensor:
        """Return a mask, true where a document is known to be no negative of a query.

        These are known positives, documents that share the query's label, and, without in-batch
        negatives, documents of other rows. Shapes: ``(len(queries), len(documents))``.
        """
        asked, positives = self.known_pairs.unbind(dim=1)
        known = false_negatives(
            self.query_hashes[queries], positives, asked, self.document_hashes[documents]
        )
        labels = self.query_labels[queries, None]
        known |= (labels == self.labels[documents]) & (labels != 0)
        if not self.in_batch_negatives:
            rows = torch.arange(len(self.query_hashes), device=known.device)[queries]
            known |= rows[:, None] != self.owners[documents]
        return known

    def excluded(self, known: Tensor, queries: Tensor | slice, documents: Tensor | slice) -> Tensor:
        """Return ``known``, extended by the negatives that the surrogate's filter drops."""
        return known if self.filter is None else known | self.filter.dropped(queries, documents)


class ContrastiveObjective:
    """InfoNCE over positives, hard negatives and in-batch documents (paper, section 5.2.1).

    The loss is the mean over the queries of all ranks, once gradients are averaged over ranks. With
    ``matryoshka_dims`` it is the weighted mean of the losses of the vectors truncated to each width
    (Kusupati et al., 2022, "Matryoshka Representation Learning", who take the sum).
    """

    def __init__(self, config: InfoNCE) -> None:
        self._config = config

    def backward(
        self, model: nn.Module, batch: ContrastiveBatch, *, key: int, scale: float
    ) -> dict[str, Tensor]:
        """Add ``scale`` times the gradient of the batch's loss to the parameters.

        Args:
            model: encoder that maps a ``TokenBatch`` to unit vectors.
            batch: this rank's share of the batch.
            key: random key of this batch on this rank.
            scale: factor of the gradient: 1 / number of batches in a step.

        Returns:
            ``loss``, the mean over all ranks' queries; ``accuracy``, the share of queries whose
            positive scores at least as high as every negative; ``tokens``, the number of tokens
            encoded over all ranks; with ``false_negatives``, ``filtered``, the share of negatives
            that the surrogate drops; with ``matryoshka_dims``, ``loss_<width>`` of every width.
        """
        encoded = [
            Replay(
                model, tokens, budget=self._config.micro_batch_tokens, key=rng.fold_in(key, role)
            )
            for role, tokens in (("queries", batch.queries), ("documents", batch.documents))
        ]
        queries, documents = encoded
        metrics = self.backward_to(queries.embeddings, documents.embeddings, batch, scale=scale)
        for replay in encoded:
            replay.backward()
        return metrics

    def backward_to(
        self, queries: Tensor, documents: Tensor, batch: ContrastiveBatch, *, scale: float
    ) -> dict[str, Tensor]:
        """Add ``scale`` times the gradient of the loss to embeddings; return the metrics.

        Shapes: unit vectors of the batch's queries ``(q, D)`` and documents ``(n, D)``, both leaves
        of a graph.
        """
        # Gradients are averaged over ranks later, so each rank multiplies its sum by world_size.
        rank_sums = self._backward_blocks(
            batch, queries, documents, scale=scale * distributed.world_size() / batch.size
        )
        tokens = batch.queries.num_tokens + batch.documents.num_tokens
        sums = distributed.sum_over_ranks(torch.cat([rank_sums.new_tensor([tokens]), rank_sums]))
        read, correct, dropped, negatives = sums[:4]
        losses = sums[4:] / batch.size
        dims = self._config.matryoshka_dims or ()
        filtering = self._config.false_negatives != "off"
        return {
            "loss": self._mean(losses),
            "accuracy": correct / batch.size,
            "tokens": read,
            **({"filtered": dropped / negatives.clamp(min=1)} if filtering else {}),
            **{f"loss_{dim}": losses[number] for number, dim in enumerate(dims)},
        }

    def _mean(self, losses: Tensor) -> Tensor:
        """Return the weighted mean of the losses of all widths. Shapes: ``(C,)`` -> ``()``."""
        weights = losses.new_tensor(self._config.matryoshka_weights or [1.0] * len(losses))
        return losses @ weights / weights.sum()

    def _backward_blocks(
        self, batch: ContrastiveBatch, queries: Tensor, documents: Tensor, *, scale: float
    ) -> Tensor:
        """Back-propagate from scores to embeddings, a block of this rank's queries at a time.

        Returns:
            The sums over this rank's queries of the counts and losses that ``_of_rows`` returns.
        """
        joined = self._gather(batch, queries, documents)
        gathered = replace(joined, queries=_leaf(joined.queries), documents=_leaf(joined.documents))
        step = max(1, _SCORES // max(1, len(gathered.documents)))
        sums = []
        for start in range(0, len(queries) or 1, step):
            rows = slice(start, start + step)
            losses, counts = self._of_rows(gathered, queries, documents, rows)
            (self._mean(losses) * scale).backward()
            sums.append(torch.cat([counts.to(losses), losses.detach()]))
        for side in ("queries", "documents"):
            whole, leaf = getattr(joined, side), getattr(gathered, side)
            if whole is not leaf and leaf.grad is not None:
                whole.backward(leaf.grad)
        return torch.stack(sums).sum(dim=0)

    def _of_rows(
        self, gathered: _Gathered, queries: Tensor, documents: Tensor, rows: slice
    ) -> tuple[Tensor, Tensor]:
        """Return the losses at every width and three counts, summed over ``rows`` of the queries.

        The counts are queries that rank their positive first, negatives dropped by the filter, and
        negatives before filtering.
        """
        block, positives = queries[rows], gathered.positives[rows]
        asked = torch.arange(gathered.mine.start, gathered.mine.stop, device=block.device)[rows]
        known = gathered.known(asked, _ALL)
        excluded = gathered.excluded(known, asked, _ALL)
        reverse = None
        # Without in-batch negatives a positive has no other query as its negative.
        if self._config.symmetric and gathered.in_batch_negatives:
            known_queries = gathered.known(_ALL, positives)
            reverse = gathered.excluded(known_queries, _ALL, positives).T
        temperature = self._config.temperature
        loss_of = partial(info_nce, temperature=temperature, reduction="sum")
        losses = []
        for dim in self._config.matryoshka_dims or (queries.shape[1],):
            candidates = truncated(gathered.documents, dim)
            loss = loss_of(truncated(block, dim), candidates, positives, excluded=excluded)
            if reverse is not None:
                answers = truncated(documents[: len(queries)][rows], dim)
                candidates = truncated(gathered.queries, dim)
                loss = (loss + loss_of(answers, candidates, asked, excluded=reverse)) / 2
            losses.append(loss)
        with torch.no_grad():
            scores = similarity(block, gathered.documents, temperature)
            beaten = (scores > scores.gather(1, positives[:, None])) & ~excluded
            correct = (~beaten.any(dim=1)).sum()
        # ``known`` holds a query's own positive, so neither count of negatives includes it.
        counts = torch.stack([correct, (excluded & ~known).sum(), (~known).sum()])
        return torch.stack(losses), counts

    def _gather(self, batch: ContrastiveBatch, queries: Tensor, documents: Tensor) -> _Gathered:
        across = distributed.gather if self._config.cross_device else lambda rows: (rows, 0)
        count, surrogate_filter = len(queries), None
        if self._config.false_negatives != "off":
            assert batch.surrogate is not None, "batches were made without the surrogate's vectors"
            surrogate_filter = Filter.over(batch.surrogate, len(documents), across, self._config)
        pairs = torch.stack([batch.query_hashes, batch.document_hashes[:count]], dim=1)
        all_queries, first_query = across(queries)
        query_facts, _ = across(torch.stack([batch.query_hashes, batch.labels[:count]], dim=1))
        all_documents, first_document = across(documents)
        columns = [batch.document_hashes, batch.owners + first_query, batch.labels]
        document_facts, _ = across(torch.stack(columns, dim=1))
        return _Gathered(
            queries=all_queries,
            documents=all_documents,
            query_hashes=query_facts[:, 0],
            document_hashes=document_facts[:, 0],
            # The pairs of all ranks are known positives, whether or not ranks share documents.
            known_pairs=distributed.gather(pairs)[0],
            owners=document_facts[:, 1],
            labels=document_facts[:, 2],
            query_labels=query_facts[:, 1],
            mine=slice(first_query, first_query + count),
            positives=first_document + torch.arange(count, device=queries.device),
            in_batch_negatives=batch.in_batch_negatives,
            filter=surrogate_filter,
        )


def _leaf(rows: Tensor) -> Tensor:
    """Return ``rows`` as a leaf of the graph, which several backward passes may add gradients to.

    Rows gathered from other ranks are detached, so that a backward pass stops at them.
    """
    return rows if rows.is_leaf else rows.detach().requires_grad_()
