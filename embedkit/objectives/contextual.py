"""Contextual objective: InfoNCE over texts embedded in a context of the batch's own documents."""

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
    """InfoNCE over a two-stage model, with exact gradient caching in both stages.

    The first encoder embeds documents of this rank's batch once a step; the second encoder reads
    these embeddings in front of every query and document (NeoBERT, appendix G; Morris and Rush,
    2024). Negatives and loss are those of ``ContrastiveObjective``. The paper shares no negatives
    between ranks, since each rank has a context of its own: ``cross_device = false``.
    """

    def __init__(self, config: InfoNCE) -> None:
        self._config, self._contrast = config, ContrastiveObjective(config)

    def backward(
        self, model: nn.Module, batch: ContrastiveBatch, *, key: int, scale: float
    ) -> dict[str, Tensor]:
        """Add ``scale`` times the gradient of the batch's loss to the parameters of both encoders.

        Arguments and results are the same as in ``ContrastiveObjective.backward``, except that
        ``tokens`` also counts the tokens of the context documents, once a step.
        """
        assert isinstance(model, Contextual)
        rows = context_rows(len(batch.documents), model.config.num_context, key)
        context = Replay(
            model.embed_context,
            batch.documents.select(rows),
            budget=self._config.micro_batch_tokens,
            key=rng.fold_in(key, "context"),
        )
        encode = partial(model, context=context.embeddings)
        overhead = model.config.num_prefix
        metrics = self._contrast.backward(encode, batch, key=key, scale=scale, overhead=overhead)
        # The context is replayed last, since every query and document adds to its gradient.
        context.backward()
        context_tokens = metrics["tokens"].new_tensor(int(batch.documents.lengths[rows].sum()))
        return metrics | {"tokens": metrics["tokens"] + distributed.sum_over_ranks(context_tokens)}


def context_rows(documents: int, slots: int, key: int) -> Tensor:
    """Draw the rows of a rank's documents that form its context: ``slots`` rows, or all if fewer.

    The draw is a pure function of ``key``, which is derived from step and rank.
    """
    indices = np.arange(min(slots, documents))
    return torch.from_numpy(rng.permuted(indices, documents, rng.fold_in(key, "context rows")))
