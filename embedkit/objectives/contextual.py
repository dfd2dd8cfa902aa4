"""Contextual objective: texts scored in a context of the batch's own documents."""

from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from embedkit import distributed, rng
from embedkit.data.pairs.contrastive_batches import ContrastiveBatch
from embedkit.models.contextual.model import Contextual
from embedkit.objectives.contrastive import ContrastiveObjective
from embedkit.objectives.gradcache import Replay
from embedkit.recipe import InfoNCE


class ContextualObjective:
    """InfoNCE over texts that two encoders embed one after the other, exactly cached in two stages.

    The first encoder reads documents of this rank's batch, once for the step; the second reads them
    in front of every query and document (NeoBERT, appendix G; Morris and Rush, 2024). What is a
    negative of what, and the loss, are those of ``ContrastiveObjective``.

    Args:
        config: temperature, exclusions, and the tokens of a chunk in either stage, where a text of
            the second costs its context besides. The paper shares no negatives between ranks:
            ``cross_device = false``, since each rank has a context of its own.
    """

    def __init__(self, config: InfoNCE) -> None:
        self._config, self._contrast = config, ContrastiveObjective(config)

    def backward(
        self, model: nn.Module, batch: ContrastiveBatch, *, key: int, scale: float
    ) -> dict[str, Tensor]:
        """Add ``scale`` times the gradient of the batch's loss to the parameters of both encoders.

        Arguments and results are those of ``ContrastiveObjective``; ``tokens`` counts those of the
        context as well, each once.
        """
        assert isinstance(model, Contextual)
        rows = context_rows(len(batch.documents), model.config.num_context, key)
        context = Replay(
            model.embed_context,
            batch.documents.select(rows),
            budget=self._config.micro_batch_tokens,
            key=rng.fold_in(key, "context"),
        )
        queries, documents = (
            Replay(
                partial(model, context=context.embeddings),
                tokens,
                budget=self._config.micro_batch_tokens,
                overhead=model.config.num_prefix,
                key=rng.fold_in(key, role),
            )
            for role, tokens in (("queries", batch.queries), ("documents", batch.documents))
        )
        metrics = self._contrast.backward_to(
            queries.embeddings, documents.embeddings, batch, scale=scale
        )
        # The context last: its gradient comes from every text of both sides.
        for each in (queries, documents, context):
            each.backward()
        read = metrics["tokens"].new_tensor(int(batch.documents.lengths[rows].sum()))
        return metrics | {"tokens": metrics["tokens"] + distributed.sum_over_ranks(read)}


def context_rows(documents: int, slots: int, key: int) -> Tensor:
    """Which of a rank's documents are its context: ``slots`` of them, or all of fewer.

    The draw is a pure function of ``key``, which names step and rank.
    """
    places = np.arange(min(slots, documents))
    return torch.from_numpy(rng.permuted(places, documents, rng.fold_in(key, "context rows")))
