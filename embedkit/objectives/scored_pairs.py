"""Objective on scored pairs: similarities in the order of the scores (CoSENT and AnglE)."""

from collections.abc import Callable

from torch import Tensor

from embedkit import distributed
from embedkit.data.pairs.contrastive_batches import ContrastiveBatch
from embedkit.objectives.gradcache import replay_pairs
from embedkit.objectives.score_losses import cosent, pairwise_angles, pairwise_cosines, spearman
from embedkit.recipe import CoSENT
from embedkit.tokens.batch import TokenBatch

_SIMILARITIES = {"cosent": pairwise_cosines, "angle": pairwise_angles}


class ScoredPairsObjective:
    """CoSENT's loss over the pairs of all ranks, of cosines or of AnglE's similarities.

    The loss compares every pair of the batch with every other, so it is one number for the batch
    and not a mean over its pairs. Ranks exchange similarities and scores, not vectors.
    """

    def __init__(self, config: CoSENT) -> None:
        self._config, self._similarity = config, _SIMILARITIES[config.kind]

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
            batch: this rank's share of the batch, with scores and without hard negatives.
            key: random key of this batch on this rank.
            scale: factor of the gradient: 1 / number of batches in a step.

        Returns:
            ``loss``; ``spearman``, the rank correlation of similarities and scores; ``tokens``, the
            number of tokens encoded over all ranks.
        """
        assert batch.scores is not None, "batches were made without scores"
        queries, documents = replay_pairs(
            model, batch, budget=self._config.micro_batch_tokens, key=key
        )
        own = self._similarity(queries.embeddings, documents.embeddings)
        # The gathered rows' gradient is summed over ranks and later averaged, which cancels out:
        # every rank computes the whole loss.
        similarities, _ = distributed.gather(own)
        scores, _ = distributed.gather(batch.scores)
        loss = cosent(similarities, scores, temperature=self._config.temperature)
        (loss * scale).backward()
        queries.backward()
        documents.backward()
        tokens = loss.new_tensor(batch.queries.num_tokens + batch.documents.num_tokens)
        return {
            "loss": loss.detach(),
            "spearman": spearman(similarities.detach(), scores),
            "tokens": distributed.sum_over_ranks(tokens),
        }
