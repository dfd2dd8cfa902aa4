"""Contrastive objective, which adds the gradients of a batch of queries and documents."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from embedkit import distributed
from embedkit.data.pairs.contrastive_batches import ContrastiveBatch
from embedkit.objectives.filtering import Filter
from embedkit.objectives.gradcache import replay_pairs
from embedkit.objectives.losses import false_negatives, info_nce, similarity, truncated
from embedkit.objectives.negative_counts import COUNTS, Masks, counted, metrics
from embedkit.recipe import InfoNCE
from embedkit.tokens.batch import TokenBatch

_SCORES = 2**22
"""Number of query-document scores held in memory at a time: 16 MiB in fp32, and a few times that
with the tensors derived from them."""
_ALL = slice(None)


class _Candidates:
    """Queries and documents of all ranks, or of this rank alone without ``cross_device``.

    Shapes: ``queries`` ``(Q, D)`` and ``documents`` ``(N, D)``: embeddings, leaves of the graph;
    ``mine`` ``(q,)``: this rank's queries among all queries; ``positives`` ``(q,)``: their
    positives among all documents.
    """

    def __init__(
        self, batch: ContrastiveBatch, queries: Tensor, documents: Tensor, config: InfoNCE
    ) -> None:
        across = distributed.gather if config.cross_device else _own
        self._joined = [across(rows)[0] for rows in (queries, documents)]
        # Blocks of queries add their gradients to leaves; those of gathered rows take one
        # collective in the end.
        self.queries, self.documents = (
            rows if rows.is_leaf else rows.detach().requires_grad_() for rows in self._joined
        )
        count = len(queries)
        columns = [batch.query_hashes, batch.labels[:count]]
        query_facts, first_query = across(torch.stack(columns, dim=1))
        self._query_hashes, self._query_labels = query_facts.unbind(dim=1)
        columns = [batch.document_hashes, batch.owners + first_query, batch.labels]
        document_facts, first_document = across(torch.stack(columns, dim=1))
        self._document_hashes, self._owners, self._labels = document_facts.unbind(dim=1)
        pairs = torch.stack([batch.query_hashes, batch.document_hashes[:count]], dim=1)
        if batch.known_answers is not None:
            pairs = torch.cat([pairs, batch.known_answers])
        # The pairs of all ranks are known positives, whether or not ranks share documents.
        self._asked, self._answers = distributed.gather(pairs)[0].unbind(dim=1)
        numbers = torch.arange(count, device=queries.device)
        self.mine = first_query + numbers
        self.positives = first_document + numbers
        self.in_batch_negatives = batch.in_batch_negatives
        self._filter = None
        if config.false_negatives != "off":
            assert batch.surrogate is not None, "batches were made without the surrogate's vectors"
            self._filter = Filter(batch.surrogate, len(documents), across, config)

    def masks(self, queries: Tensor | slice, documents: Tensor | slice) -> Masks:
        """Return which documents are no negatives of a query, and why."""
        asking, texts = self._query_hashes[queries], self._document_hashes[documents]
        by_text = false_negatives(asking, self._answers, self._asked, texts)
        labels = self._query_labels[queries, None]
        by_label = (labels == self._labels[documents]) & (labels != 0) & ~by_text
        excluded = by_text | by_label
        if not self.in_batch_negatives:
            own = self.own(queries, documents)
            by_text, by_label, excluded = by_text & own, by_label & own, excluded | ~own
        if self._filter is None:
            return Masks(by_text, by_label, None, excluded)
        dropped = self._filter.dropped(queries, documents) & ~excluded
        return Masks(by_text, by_label, dropped, excluded | dropped)

    def own(self, queries: Tensor | slice, documents: Tensor | slice) -> Tensor:
        """Return a mask, true where a document came with a query, as positive or hard negative."""
        rows = torch.arange(len(self._query_hashes), device=self._owners.device)[queries]
        return rows[:, None] == self._owners[documents]

    def backward(self) -> None:
        """Pass the gradients of gathered rows on to the ranks that they come from."""
        for whole, leaf in zip(self._joined, (self.queries, self.documents), strict=True):
            if whole is not leaf and leaf.grad is not None:
                whole.backward(leaf.grad)


def _own(rows: Tensor) -> tuple[Tensor, int]:
    return rows, 0


class ContrastiveObjective:
    """InfoNCE over positives, hard negatives and in-batch documents (paper, section 5.2.1).

    The loss is the mean over the queries of all ranks, once gradients are averaged over ranks. With
    ``matryoshka_dims`` it is the weighted mean of the losses of the vectors truncated to each width
    (Kusupati et al., 2022, "Matryoshka Representation Learning", who take the sum).
    """

    def __init__(self, config: InfoNCE) -> None:
        self._config = config

    def backward(
        self,
        model: Callable[[TokenBatch], Tensor],
        batch: ContrastiveBatch,
        *,
        key: int,
        scale: float,
        overhead: int = 0,
    ) -> dict[str, Tensor]:
        """Add ``scale`` times the gradient of the batch's loss to the parameters.

        Args:
            model: encoder that maps a ``TokenBatch`` to unit vectors.
            batch: this rank's share of the batch.
            key: random key of this batch on this rank.
            scale: factor of the gradient: 1 / number of batches in a step.
            overhead: number of tokens that the encoder reads with each text, such as a context.

        Returns:
            ``loss``, the mean over all ranks' queries; ``tokens``, the number of tokens encoded
            over all ranks; what ``negative_counts.metrics`` says of negatives; with
            ``matryoshka_dims``, ``loss_<width>`` of every width.
        """
        queries, documents = replay_pairs(
            model, batch, budget=self._config.micro_batch_tokens, key=key, overhead=overhead
        )
        # Gradients are averaged over ranks later, so each rank multiplies its sum by world_size.
        rank_sums = self._backward_blocks(
            batch,
            queries.embeddings,
            documents.embeddings,
            scale=scale * distributed.world_size() / batch.size,
        )
        queries.backward()
        documents.backward()
        tokens = batch.queries.num_tokens + batch.documents.num_tokens
        sums = distributed.sum_over_ranks(torch.cat([rank_sums.new_tensor([tokens]), rank_sums]))
        read, counts, losses = sums[0], sums[1 : 1 + len(COUNTS)], sums[1 + len(COUNTS) :]
        losses = losses / batch.size
        dims = self._config.matryoshka_dims or ()
        filtering = self._config.false_negatives != "off"
        return {
            "loss": self._mean(losses),
            "tokens": read,
            **metrics(counts, batch.size, filtering=filtering),
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

        Returns the counts and losses of ``_of_rows``, summed over this rank's queries.
        """
        candidates = _Candidates(batch, queries, documents, self._config)
        step = max(1, _SCORES // max(1, len(candidates.documents)))
        sums = []
        for start in range(0, len(queries) or 1, step):
            rows = slice(start, start + step)
            losses, counts = self._of_rows(candidates, queries, documents, rows)
            (self._mean(losses) * scale).backward()
            sums.append(torch.cat([counts, losses.detach()]))
        candidates.backward()
        return torch.stack(sums).sum(dim=0)

    def _of_rows(
        self, candidates: _Candidates, queries: Tensor, documents: Tensor, rows: slice
    ) -> tuple[Tensor, Tensor]:
        """Return the losses at every width and ``COUNTS``, summed over ``rows`` of the queries."""
        block, asked, positives = queries[rows], candidates.mine[rows], candidates.positives[rows]
        masks = candidates.masks(asked, _ALL)
        reverse = None
        # Without in-batch negatives a positive has no other query as its negative.
        if self._config.symmetric and candidates.in_batch_negatives:
            reverse = candidates.masks(_ALL, positives).excluded.T
        loss_of = partial(info_nce, temperature=self._config.temperature, reduction="sum")
        losses = []
        for dim in self._config.matryoshka_dims or (queries.shape[1],):
            among = truncated(candidates.documents, dim)
            loss = loss_of(truncated(block, dim), among, positives, excluded=masks.excluded)
            if reverse is not None:
                answers = truncated(documents[: len(queries)][rows], dim)
                among = truncated(candidates.queries, dim)
                loss = (loss + loss_of(answers, among, asked, excluded=reverse)) / 2
            losses.append(loss)
        with torch.no_grad():
            scores = similarity(block, candidates.documents, self._config.temperature)
            counts = counted(scores, positives, masks, candidates.own(asked, _ALL))
        return torch.stack(losses), counts
