"""Vectors that may be cut, against the loss of sentence-transformers."""

from typing import Any

import pytest
import torch
from sentence_transformers.sentence_transformer.losses import (
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
)
from support.tiny_bert import gradients, tiny_embedder
from torch import Tensor, nn

from embedkit.data.pairs.contrastive_batches import ContrastiveBatch
from embedkit.models.embedder import Embedder
from embedkit.objectives.contrastive import ContrastiveObjective
from embedkit.objectives.losses import truncated
from embedkit.recipe import Contrastive
from embedkit.tokens.batch import TokenBatch

TAU = 0.1
QUERIES = TokenBatch.from_lists([(2, 3), (4,), (5, 6, 7), (8, 9)])
POSITIVES = [(10, 11, 12), (13,), (14, 15), (16, 17, 18)]
NEGATIVES = [(20,), (21, 22), (23, 24, 25, 26), (27,)]
DOCUMENTS = TokenBatch.from_lists(POSITIVES + NEGATIVES)
BATCH = ContrastiveBatch(
    source="mine",
    size=4,
    in_batch_negatives=True,
    queries=QUERIES,
    documents=DOCUMENTS,
    owners=torch.tensor([0, 1, 2, 3, 0, 1, 2, 3]),
    query_hashes=torch.arange(4),
    document_hashes=torch.arange(10, 18),
    labels=torch.zeros(8, dtype=torch.int64),
)


class Peer(nn.Module):
    """Our encoder, called as sentence-transformers calls its models."""

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        self.embedder = embedder

    def forward(self, features: dict[str, Any]) -> dict[str, Tensor]:
        return {"sentence_embedding": self.embedder(features["tokens"])}

    def get_embedding_dimension(self) -> int:
        return self.embedder.backbone.width


@pytest.mark.parametrize("micro_batch_tokens", [None, 6])
@pytest.mark.parametrize("weights", [None, (2.0, 1.0, 0.5)])
@pytest.mark.parametrize("dims", [(16, 8, 4), (12, 5, 1)])
def test_loss_and_gradients_are_those_of_sentence_transformers(
    dims: tuple[int, ...], weights: tuple[float, ...] | None, micro_batch_tokens: int | None
) -> None:
    config = Contrastive(
        temperature=TAU,
        micro_batch_tokens=micro_batch_tokens,
        matryoshka_dims=dims,
        matryoshka_weights=weights,
    )
    ours = tiny_embedder()
    metrics = ContrastiveObjective(config).backward(ours, BATCH, key=1, scale=1.0)

    theirs: Any = Peer(tiny_embedder())
    ranking = MultipleNegativesRankingLoss(theirs, scale=1 / TAU)
    # They take the sum, we take the mean.
    shares = [weight / sum(weights or [1] * 3) for weight in weights or [1] * 3]
    reference = MatryoshkaLoss(theirs, ranking, dims, shares)
    columns: list[Any] = [
        {"tokens": tokens}
        for tokens in (QUERIES, TokenBatch.from_lists(POSITIVES), TokenBatch.from_lists(NEGATIVES))
    ]
    loss = reference(columns, torch.tensor([]))
    loss.backward()
    torch.testing.assert_close(metrics["loss"], loss.detach())
    torch.testing.assert_close(gradients(ours), gradients(theirs.embedder))


def test_the_whole_width_alone_is_the_loss_without_it_bit_for_bit() -> None:
    found = []
    for dims in (None, (16,)):
        model = tiny_embedder()
        objective = ContrastiveObjective(Contrastive(matryoshka_dims=dims))
        metrics = objective.backward(model, BATCH, key=1, scale=1.0)
        found.append((metrics["loss"], gradients(model)))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_a_cut_vector_is_of_unit_length() -> None:
    rows = torch.tensor([[0.6, 0.0, 0.8], [0.0, 1.0, 0.0]], dtype=torch.float64)
    expected = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(truncated(rows, 2), expected)
    assert truncated(rows, 3) is rows
