"""Objective on a teacher's scores of each query's own documents (KL divergence and MarginMSE)."""

from collections.abc import Callable

import torch
from torch import Tensor

from embedkit import distributed
from embedkit.data.pairs.contrastive_batches import ContrastiveBatch
from embedkit.objectives.gradcache import replay_pairs
from embedkit.objectives.score_losses import (
    by_query,
    distillation_kl,
    margin_errors,
    pairwise_cosines,
)
from embedkit.recipe import Distill
from embedkit.tokens.batch import TokenBatch


class DistillObjective:
    """Learns how a teacher scores the positive and the hard negatives of each query.

    The documents of other rows play no part. ``kl`` is the mean over the queries of all ranks, and
    ``margin_mse`` the mean over their negatives, as in ``DistillKLDivLoss`` and ``MarginMSELoss``
    of sentence-transformers.
    """

    def __init__(self, config: Distill) -> None:
        self._config = config

    def backward(
        self,
        model: Callable[[TokenBatch], Tensor],
        batch: ContrastiveBatch,
        *,
        key: int,
        scale: float,
    ) -> dict[str, Tensor]:
        """Add ``scale`` times the gradient of the batch's loss to the parameters.

        Args:
            model: encoder that maps a ``TokenBatch`` to unit vectors.
            batch: this rank's share of the batch, with a teacher's score of each document.
            key: random key of this batch on this rank.
            scale: factor of the gradient: 1 / number of batches in a step.

        Returns:
            ``loss``; ``accuracy``, the share of negatives that model and teacher put on the same
            side of the positive; ``tokens``, the number of tokens encoded over all ranks.
        """
        assert batch.teacher is not None, "batches were made without a teacher's scores"
        config = self._config
        queries, documents = replay_pairs(model, batch, budget=config.micro_batch_tokens, key=key)
        similarities = pairwise_cosines(queries.embeddings[batch.owners], documents.embeddings)
        count = len(queries.embeddings)
        student, there = by_query(similarities, batch.owners, count)
        teacher, _ = by_query(batch.teacher, batch.owners, count)
        negatives = len(batch.documents) - count
        tokens = batch.queries.num_tokens + batch.documents.num_tokens
        totals = student.new_tensor([negatives, tokens])
        negatives, tokens = distributed.sum_over_ranks(totals)
        if config.loss == "kl":
            total, terms = (
                distillation_kl(
                    student,
                    teacher,
                    there,
                    temperature=config.temperature,
                    teacher_temperature=config.teacher_temperature,
                ),
                student.new_tensor(batch.size),
            )
        else:
            total, terms = margin_errors(student, teacher, there), negatives.clamp(min=1)
        # Gradients are averaged over ranks later, so each rank multiplies its sum by world_size.
        (total / terms * scale * distributed.world_size()).backward()
        queries.backward()
        documents.backward()
        agree = (student[:, :1] > student[:, 1:]) == (teacher[:, :1] > teacher[:, 1:])
        sums = torch.stack([total.detach(), (agree & there[:, 1:]).sum().to(total)])
        loss, agreed = distributed.sum_over_ranks(sums)
        return {
            "loss": loss / terms,
            "accuracy": agreed / negatives.clamp(min=1),
            "tokens": tokens,
        }
