"""The loss of a run on its validation rows, in batches like those of training."""

from collections.abc import Sequence

import numpy as np
import torch

from embedkit import distributed, rng
from embedkit.data.batch_sampler import BatchRows
from embedkit.data.pairs.contrastive_batches import Batches, ContrastiveBatch
from embedkit.data.pairs.records import Records
from embedkit.errors import DataError
from embedkit.finetuning.mixture import batch_size_of
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.recipe import InfoNCE, Recipe
from embedkit.training.interfaces import Objective


class ValidationLoss:
    """Measures the loss of a source's validation rows, the same rows and negatives each time.

    The batches have the size of the source's batches in training, or less. No surrogate's vectors
    are stored of validation rows, so that a filter of false negatives is left out. Every rank
    takes its share of each batch, as in training.
    """

    def __init__(self, recipe: Recipe, model: EmbeddingModel, records: Sequence[Records]) -> None:
        assert recipe.validation is not None
        objective = recipe.objective
        if isinstance(objective, InfoNCE):
            objective = objective.model_copy(update={"false_negatives": "off", "margin": 0.0})
        if objective.needs.surrogate_vectors:
            raise DataError(
                f'validation: objective.kind = "{objective.kind}" needs stored vectors of each '
                "row, and validation rows have none; leave [validation] out"
            )
        self._objective: Objective[ContrastiveBatch] = objective.build()
        self._model, self._seed = model, recipe.seed
        self._rows: list[list[BatchRows]] = []
        for number, source in enumerate(records):
            size = min(len(source), recipe.validation.max_queries)
            key = rng.fold_in(recipe.seed, "validation", source.name)
            rows = rng.permuted(np.arange(size), len(source), key)
            parts = -(-size // batch_size_of(source.batch_size, recipe))
            batches = [BatchRows(number, part) for part in np.array_split(rows, parts)]
            if (smallest := len(batches[-1].rows)) < distributed.world_size():
                raise DataError(
                    f"source {source.name} has a validation batch of {smallest} rows, fewer than "
                    f"the {distributed.world_size()} ranks: raise validation.share, or start fewer "
                    "ranks"
                )
            self._rows.append(batches)
        self._batches = [
            Batches(batches, records, model.tokenizer, recipe.data, seed=recipe.seed)
            for batches in self._rows
        ]

    def of_source(self, number: int) -> float:
        """Return the mean loss of the validation queries of a source, without dropout."""
        total = 0.0
        was_training = self._model.training
        self._model.eval()
        try:
            for batch in range(len(self._rows[number])):
                total += self._weighted_loss(number, batch)
        finally:
            self._model.train(was_training)
            # Objectives leave gradients, which are no part of the next step.
            self._model.zero_grad()
        return total / sum(len(batch.rows) for batch in self._rows[number])

    def _weighted_loss(self, number: int, batch: int) -> float:
        """Return the loss of a batch times its number of queries."""
        key = rng.fold_in(self._seed, "validation", number, batch, distributed.rank())
        torch.manual_seed(key)
        read = self._batches[number][batch].to(self._model.device)
        values = self._objective.backward(self._model, read, key=key, scale=1.0)
        return float(values["loss"]) * read.size
