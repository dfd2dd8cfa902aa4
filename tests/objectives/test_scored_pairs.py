"""CoSENT and AnglE against sentence-transformers in double precision, on one rank and on more."""

from typing import Any

import pytest
import torch
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import AnglELoss, CoSENTLoss
from support.ranks import run_on_ranks
from support.tiny_bert import gradients, tiny_embedder
from torch import Tensor

from embedkit import distributed
from embedkit.data.pairs.contrastive_batches import ContrastiveBatch
from embedkit.objectives.score_losses import cosent, pairwise_angles, spearman
from embedkit.objectives.scored_pairs import ScoredPairsObjective
from embedkit.recipe import AnglE, CoSENT
from embedkit.recipe.pair_objectives import OBJECTIVES
from embedkit.tokens.batch import TokenBatch

QUERIES = [(2, 3), (4,), (5, 6, 7), (8, 9), (4, 9), (10,)]
DOCUMENTS = [(10, 11, 12), (13,), (14, 15), (16, 17, 18), (13, 2), (19, 20)]
# Two pairs share a score, so neither is compared with the other.
SCORES = [0.2, 5.0, 3.1, 3.1, 0.0, 4.5]
LOSSES: dict[str, Any] = {"cosent": CoSENTLoss, "angle": AnglELoss}


def share(rows: range) -> ContrastiveBatch:
    count = len(rows)
    return ContrastiveBatch(
        source="mine",
        size=len(QUERIES),
        in_batch_negatives=True,
        queries=TokenBatch.from_lists([QUERIES[row] for row in rows]),
        documents=TokenBatch.from_lists([DOCUMENTS[row] for row in rows]),
        owners=torch.arange(count),
        query_hashes=torch.arange(count),
        document_hashes=torch.arange(count),
        labels=torch.zeros(count, dtype=torch.int64),
        scores=torch.tensor([SCORES[row] for row in rows]),
    )


def of_sentence_transformers(kind: str, temperature: float) -> tuple[Tensor, dict[str, Tensor]]:
    model, batch = tiny_embedder(), share(range(len(QUERIES)))
    reference = LOSSES[kind](
        SentenceTransformer(modules=[torch.nn.Identity()]), scale=1 / temperature
    )
    vectors = [model(batch.queries), model(batch.documents)]
    loss = reference.compute_loss_from_embeddings(vectors, torch.tensor(SCORES))
    loss.backward()
    return loss.detach(), gradients(model)


@pytest.mark.parametrize("micro_batch_tokens", [None, 5])
@pytest.mark.parametrize("temperature", [0.05, 0.5])
@pytest.mark.parametrize("kind", ["cosent", "angle"])
def test_loss_and_gradients_are_those_of_sentence_transformers(
    kind: str, temperature: float, micro_batch_tokens: int | None
) -> None:
    table = {"kind": kind, "temperature": temperature, "micro_batch_tokens": micro_batch_tokens}
    model, batch = tiny_embedder(), share(range(len(QUERIES)))
    objective = OBJECTIVES.resolve(table).build()
    metrics = objective.backward(model, batch, key=1, scale=1.0)
    loss, expected = of_sentence_transformers(kind, temperature)
    assert metrics["loss"].dtype == torch.float64
    torch.testing.assert_close(metrics["loss"], loss)
    torch.testing.assert_close(gradients(model), expected)
    assert metrics["tokens"] == sum(map(len, QUERIES + DOCUMENTS))
    with torch.no_grad():
        cosines = (model(batch.queries) * model(batch.documents)).sum(dim=1)
    if kind == "cosent":
        assert metrics["spearman"].item() == pytest.approx(spearmanr(cosines, SCORES).statistic)


@pytest.mark.parametrize("kind", ["cosent", "angle"])
@pytest.mark.parametrize(
    "parts", [[range(0, 3), range(3, 6)], [range(0, 1), range(1, 5), range(5, 6)]]
)
def test_ranks_together_compute_what_one_rank_does(kind: str, parts: list[range]) -> None:
    run_on_ranks(len(parts), check_rank, kind, parts, of_sentence_transformers(kind, 0.05))


def check_rank(kind: str, parts: list[range], expected: tuple[Tensor, dict[str, Tensor]]) -> None:
    model, batch = tiny_embedder(), share(parts[distributed.rank()])
    objective = ScoredPairsObjective(OBJECTIVES.resolve({"kind": kind}))
    metrics = objective.backward(model, batch, key=1, scale=1.0)
    distributed.average_gradients(model.parameters())
    torch.testing.assert_close(metrics["loss"], expected[0])
    torch.testing.assert_close(gradients(model), expected[1])
    assert metrics["tokens"] == sum(map(len, QUERIES + DOCUMENTS))


def test_the_loss_is_its_definition() -> None:
    similarities, scores = torch.randn(9, dtype=torch.float64), torch.tensor([1, 2, 2, 0, 3, 1] * 2)
    scores = scores[:9]
    terms = [
        ((similarities[j] - similarities[i]) / 0.1).exp()
        for i in range(9)
        for j in range(9)
        if scores[i] > scores[j]
    ]
    expected = (1 + torch.stack(terms).sum()).log()
    torch.testing.assert_close(cosent(similarities, scores, temperature=0.1), expected)


def test_equal_scores_teach_nothing() -> None:
    similarities = torch.randn(4, requires_grad=True)
    loss = cosent(similarities, torch.ones(4), temperature=0.05)
    loss.backward()
    assert loss == 0
    assert similarities.grad is not None
    assert not similarities.grad.any()
    assert spearman(similarities.detach(), torch.ones(4)) == 0


def test_a_vector_of_odd_width_gets_a_zero() -> None:
    one, other = torch.nn.functional.normalize(torch.randn(2, 3, 5, dtype=torch.float64), dim=-1)
    padded = (torch.nn.functional.pad(rows, (0, 1)) for rows in (one, other))
    torch.testing.assert_close(pairwise_angles(one, other), pairwise_angles(*padded))


def test_the_loss_is_computed_in_fp32_under_bf16_autocast() -> None:
    batch, model = share(range(6)), tiny_embedder()
    with torch.autocast("cpu", torch.bfloat16):
        metrics = ScoredPairsObjective(CoSENT(kind="cosent")).backward(
            model.float(), batch, key=1, scale=1.0
        )
    assert metrics["loss"].dtype == torch.float32


def test_the_default_scale_is_that_of_sentence_transformers() -> None:
    model = SentenceTransformer(modules=[torch.nn.Identity()])
    assert CoSENT(kind="cosent").temperature == 1 / CoSENTLoss(model).scale
    assert AnglE(kind="angle").temperature == 1 / AnglELoss(model).scale
