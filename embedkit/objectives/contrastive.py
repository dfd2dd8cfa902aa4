"""Contrastive objective: a batch of queries and documents in, gradients and metrics out."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from embedkit import distributed, rng
from embedkit.data.pairs.contrastive_batches import ContrastiveBatch
from embedkit.objectives.filtering import Filter
from embedkit.objectives.gradcache import Replay
from embedkit.objectives.losses import false_negatives, info_nce, similarity, truncated
from embedkit.recipe import InfoNCE

_Across = Callable[[Tensor], tuple[Tensor, int]]
_SCORES = 2**22
"""Scores of queries and documents that exist at a time: 16 MiB in fp32, and a few times that with
what is made of them."""


@dataclass(frozen=True, slots=True)
class _Shared:
    """What the loss sees of all ranks, and where this rank's rows stand in it.

    Shapes: Q queries and N documents over all ranks (of this rank alone without ``cross_device``);
    ``known_pairs`` ``(b, 2)`` holds the hashes of query and positive of every row of the
    whole batch; ``mine`` are the q queries of this rank, and ``positives`` ``(q,)`` are the rows of
    their positives.
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
    filter: Filter | None

    def cut(self, dim: int) -> Self:
        """The same with vectors of ``dim`` features."""
        return replace(
            self,
            queries=truncated(self.queries, dim),
            documents=truncated(self.documents, dim),
        )


class ContrastiveObjective:
    """InfoNCE over positives, hard negatives and in-batch documents (paper, section 5.2.1).

    The loss is the mean over the queries of all ranks once gradients are averaged over ranks. With
    ``matryoshka_dims`` it is the weighted mean of what it is for vectors cut to each width
    (Kusupati et al., 2022, "Matryoshka Representation Learning", who take the sum).
    """

    def __init__(self, config: InfoNCE) -> None:
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
            positive scores highest of what it is told from; ``tokens`` read over all ranks; with
            ``false_negatives``, ``filtered``, the share of negatives that the surrogate drops; with
            ``matryoshka_dims``, ``loss_<width>`` for each.
        """
        encoded = [
            Replay(
                model, tokens, budget=self._config.micro_batch_tokens, key=rng.fold_in(key, role)
            )
            for role, tokens in (("queries", batch.queries), ("documents", batch.documents))
        ]
        queries, documents = encoded
        metrics = self.backward_to(queries.embeddings, documents.embeddings, batch, scale=scale)
        for each in encoded:
            each.backward()
        return metrics

    def backward_to(
        self, queries: Tensor, documents: Tensor, batch: ContrastiveBatch, *, scale: float
    ) -> dict[str, Tensor]:
        """``backward`` as far as the embeddings, whoever made them.

        Shapes: unit vectors of the batch's queries ``(q, D)`` and documents ``(n, D)``, both leaves
        of a graph.
        """
        # Gradients are averaged over ranks later, so each rank's sum counts world_size-fold.
        own = self._backward_blocks(
            batch, queries, documents, scale=scale * distributed.world_size() / batch.size
        )
        tokens = batch.queries.num_tokens + batch.documents.num_tokens
        sums = distributed.sum_over_ranks(torch.cat([own.new_tensor([tokens]), own]))
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
        """The mean over the widths by their weights. Shapes: ``(C,)`` -> ``()``."""
        weights = losses.new_tensor(self._config.matryoshka_weights or [1.0] * len(losses))
        return losses @ weights / weights.sum()

    def _backward_blocks(
        self, batch: ContrastiveBatch, queries: Tensor, documents: Tensor, *, scale: float
    ) -> Tensor:
        """Go back through the scores of some of this rank's queries at a time.

        Three counts come first in what is returned: of its queries that, at the whole width, rank
        their positive first; of the negatives that the filter drops, and of all that there are
        without it. Then come its sums of losses at each width.
        """
        joined = self._share(batch, queries, documents)
        shared = replace(joined, queries=_leaf(joined.queries), documents=_leaf(joined.documents))
        step = max(1, _SCORES // max(1, len(shared.documents)))
        sums = []
        for start in range(0, len(queries) or 1, step):
            rows = slice(start, start + step)
            losses, counts = self._of_rows(batch, shared, queries, documents, rows)
            (self._mean(losses) * scale).backward()
            sums.append(torch.cat([counts.to(losses), losses.detach()]))
        for whole, leaf in (
            (joined.queries, shared.queries),
            (joined.documents, shared.documents),
        ):
            if whole is not leaf and leaf.grad is not None:
                whole.backward(leaf.grad)
        return torch.stack(sums).sum(dim=0)

    def _of_rows(
        self,
        batch: ContrastiveBatch,
        shared: _Shared,
        queries: Tensor,
        documents: Tensor,
        rows: slice,
    ) -> tuple[Tensor, Tensor]:
        """Of some of this rank's queries, the sums of losses, and the three counts."""
        everything = slice(None)
        own, positives = queries[rows], shared.positives[rows]
        asked = torch.arange(shared.mine.start, shared.mine.stop, device=own.device)[rows]
        known = self._excluded(batch, shared, asked, everything)
        excluded = _filtered(known, shared, asked, everything)
        # Without in-batch negatives a positive has no other query to be told from.
        symmetric = self._config.symmetric and batch.in_batch_negatives
        reverse = None
        if symmetric:
            reverse = self._excluded(batch, shared, everything, positives)
            reverse = _filtered(reverse, shared, everything, positives).T
        losses = []
        for dim in self._config.matryoshka_dims or (queries.shape[1],):
            cut = shared.cut(dim)
            loss = self._loss(truncated(own, dim), cut.documents, positives, excluded)
            if reverse is not None:
                answers = truncated(documents[: len(queries)][rows], dim)
                loss = (loss + self._loss(answers, cut.queries, asked, reverse)) / 2
            losses.append(loss)
        correct = self._correct(own, shared, positives, excluded)
        # A query's own positive is no negative, and so in neither count.
        counts = torch.stack([correct, (excluded & ~known).sum(), (~known).sum()])
        return torch.stack(losses), counts

    def _loss(self, rows: Tensor, candidates: Tensor, own: Tensor, excluded: Tensor) -> Tensor:
        temperature = self._config.temperature
        return info_nce(
            rows, candidates, own, temperature=temperature, excluded=excluded, reduction="sum"
        )

    @torch.no_grad()
    def _correct(
        self, queries: Tensor, shared: _Shared, positives: Tensor, excluded: Tensor
    ) -> Tensor:
        scores = similarity(queries, shared.documents, self._config.temperature)
        own = scores.gather(1, positives[:, None])
        beaten = (scores > own) & ~excluded
        return (~beaten.any(dim=1)).sum()

    def _share(self, batch: ContrastiveBatch, queries: Tensor, documents: Tensor) -> _Shared:
        across = distributed.gather if self._config.cross_device else _alone
        count = len(queries)
        pairs = torch.stack([batch.query_hashes, batch.document_hashes[:count]], dim=1)
        # What is true on one rank is true on all, whether or not they share documents.
        known_pairs, _ = distributed.gather(pairs)
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
            known_pairs=known_pairs,
            owners=all_own[:, 1],
            labels=all_own[:, 2],
            query_labels=all_facts[:, 1],
            mine=slice(first_query, first_query + count),
            positives=first_document + torch.arange(count, device=queries.device),
            filter=self._filter(batch, across),
        )

    def _filter(self, batch: ContrastiveBatch, across: _Across) -> Filter | None:
        if self._config.false_negatives == "off":
            return None
        assert batch.surrogate is not None, "batches were made without the surrogate's vectors"
        return Filter.over(batch.surrogate, len(batch.documents), across, self._config)

    def _excluded(
        self,
        batch: ContrastiveBatch,
        shared: _Shared,
        queries: Tensor | slice,
        documents: Tensor | slice,
    ) -> Tensor:
        """Which of some documents are no negatives of which of some queries."""
        asked, positives = shared.known_pairs.unbind(dim=1)
        excluded = false_negatives(
            shared.query_hashes[queries], positives, asked, shared.document_hashes[documents]
        )
        labels = shared.query_labels[queries, None]
        excluded |= (labels == shared.labels[documents]) & (labels != 0)
        if not batch.in_batch_negatives:
            rows = torch.arange(len(shared.query_hashes), device=excluded.device)[queries]
            excluded |= rows[:, None] != shared.owners[documents]
        return excluded


def _filtered(
    excluded: Tensor, shared: _Shared, queries: Tensor | slice, documents: Tensor | slice
) -> Tensor:
    """``excluded``, and what the surrogate drops besides."""
    if shared.filter is None:
        return excluded
    return excluded | shared.filter.dropped(queries, documents)


def _leaf(rows: Tensor) -> Tensor:
    """``rows``, where blocks may go back to one after another: no further, if ranks gave them."""
    return rows if rows.is_leaf else rows.detach().requires_grad_()


def _alone(rows: Tensor) -> tuple[Tensor, int]:
    return rows, 0
