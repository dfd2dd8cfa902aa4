"""Distillation against sentence-transformers in double precision, on one rank and on two."""

from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import DistillKLDivLoss, MarginMSELoss
from support.ranks import run_on_ranks
from support.tiny_bert import gradients, tiny_embedder
from torch import Tensor

from embedkit import distributed
from embedkit.data.pairs.contrastive_batches import ContrastiveBatch
from embedkit.objectives.distill import DistillObjective
from embedkit.objectives.score_losses import by_query, distillation_kl
from embedkit.recipe import Distill
from embedkit.tokens.batch import TokenBatch

QUERIES = [(2, 3), (4,), (5, 6, 7)]
# The positive and two negatives of each query.
DOCUMENTS = [
    [(10, 11, 12), (20,), (21, 22)],
    [(13,), (23, 24, 25), (26,)],
    [(14, 15), (27, 28), (29, 9, 8)],
]
TEACHER = [[4.0, -1.0, 2.5], [0.5, 0.25, -3.0], [1.0, 2.0, -1.5]]
SETTINGS: list[dict[str, Any]] = [
    {"loss": "kl"},
    {"loss": "kl", "temperature": 0.05, "teacher_temperature": 2.0},
    {"loss": "margin_mse"},
]


def share(rows: range) -> ContrastiveBatch:
    negatives = [(row, place) for row in rows for place in (1, 2)]
    places = [(row, 0) for row in rows] + negatives
    documents = [DOCUMENTS[row][place] for row, place in places]
    owners = [row - rows.start for row, _ in places]
    return ContrastiveBatch(
        source="mine",
        size=len(QUERIES),
        in_batch_negatives=True,
        queries=TokenBatch.from_lists([QUERIES[row] for row in rows]),
        documents=TokenBatch.from_lists(documents),
        owners=torch.tensor(owners),
        query_hashes=torch.arange(len(rows)),
        document_hashes=torch.arange(len(documents)),
        labels=torch.zeros(len(documents), dtype=torch.int64),
        teacher=torch.tensor([TEACHER[row][place] for row, place in places]),
    )


def of_sentence_transformers(settings: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    model, peer = tiny_embedder(), SentenceTransformer(modules=[torch.nn.Identity()])
    reference: Any = MarginMSELoss(peer)
    if settings["loss"] == "kl":
        reference = DistillKLDivLoss(
            peer,
            student_temperature=settings.get("temperature", 1.0),
            teacher_temperature=settings.get("teacher_temperature", 1.0),
        )
    columns = [QUERIES, *zip(*DOCUMENTS, strict=True)]
    vectors = [model(TokenBatch.from_lists(list(column))) for column in columns]
    labels = torch.tensor(TEACHER, dtype=torch.float64)
    loss = reference.compute_loss_from_embeddings(vectors, labels)
    loss.backward()
    return loss.detach(), gradients(model)


@pytest.mark.parametrize("micro_batch_tokens", [None, 5])
@pytest.mark.parametrize("settings", SETTINGS)
def test_loss_and_gradients_are_those_of_sentence_transformers(
    settings: dict[str, Any], micro_batch_tokens: int | None
) -> None:
    config = Distill(kind="distill", micro_batch_tokens=micro_batch_tokens, **settings)
    model = tiny_embedder()
    metrics = DistillObjective(config).backward(model, share(range(3)), key=1, scale=1.0)
    loss, expected = of_sentence_transformers(settings)
    torch.testing.assert_close(metrics["loss"], loss)
    torch.testing.assert_close(gradients(model), expected)
    assert metrics["tokens"] == sum(map(len, QUERIES)) + sum(len(d) for r in DOCUMENTS for d in r)


@pytest.mark.parametrize("settings", SETTINGS)
def test_ranks_together_compute_what_one_rank_does(settings: dict[str, Any]) -> None:
    run_on_ranks(2, check_rank, settings, of_sentence_transformers(settings))


def check_rank(settings: dict[str, Any], expected: tuple[Tensor, dict[str, Tensor]]) -> None:
    model, batch = tiny_embedder(), share([range(0, 1), range(1, 3)][distributed.rank()])
    config = Distill(kind="distill", **settings)
    metrics = DistillObjective(config).backward(model, batch, key=1, scale=1.0)
    distributed.average_gradients(model.parameters())
    torch.testing.assert_close(metrics["loss"], expected[0])
    torch.testing.assert_close(gradients(model), expected[1])


def test_queries_may_have_different_numbers_of_negatives() -> None:
    values = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5], dtype=torch.float64)
    owners = torch.tensor([0, 1, 1, 0, 1])
    rows, there = by_query(values, owners, 2)
    assert rows.tolist() == [[0.1, 0.4, 0.0], [0.2, 0.3, 0.5]]
    assert there.tolist() == [[True, True, False], [True, True, True]]
    teacher = torch.randn(2, 3, dtype=torch.float64)
    options = {"temperature": 0.5, "teacher_temperature": 2.0}
    together = distillation_kl(rows, teacher, there, **options)
    short = distillation_kl(rows[:1, :2], teacher[:1, :2], there[:1, :2], **options)
    long = distillation_kl(rows[1:], teacher[1:], there[1:], **options)
    torch.testing.assert_close(together, short + long)
