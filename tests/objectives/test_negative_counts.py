"""Counts of negatives against loops, and shares of the gradient against autograd."""

import pytest
import torch
from torch import Tensor

from embedkit.objectives.losses import info_nce
from embedkit.objectives.negative_counts import COUNTS, Masks, counted, metrics

POSITIVES = torch.tensor([0, 1, 2])
# Six documents: the positives of three queries, two hard negatives of query 0, one of query 1.
OWN = torch.tensor([[1, 0, 0, 1, 1, 0], [0, 1, 0, 0, 0, 1], [0, 0, 1, 0, 0, 0]]).bool()
BY_TEXT = torch.tensor([[1, 0, 0, 0, 0, 0], [0, 1, 0, 1, 0, 0], [1, 1, 1, 0, 0, 0]]).bool()
BY_LABEL = torch.tensor([[0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0]]).bool()
DROPPED = torch.tensor([[0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]]).bool()


def masks(dropped: Tensor | None = DROPPED) -> Masks:
    excluded = BY_TEXT | BY_LABEL
    return Masks(BY_TEXT, BY_LABEL, dropped, excluded if dropped is None else excluded | dropped)


def scores(seed: int = 0) -> Tensor:
    return 3 * torch.randn(3, 6, dtype=torch.float64, generator=torch.manual_seed(seed))


def test_each_masked_document_counts_for_its_reason() -> None:
    sums = counted(scores(), POSITIVES, masks(), OWN)
    counts = dict(zip(COUNTS, sums.tolist(), strict=True))
    assert (counts["asking"], counts["live"]) == (2, 3 + 4)
    assert (counts["text"], counts["label"], counts["surrogate"]) == (1 + 2, 2, 3)
    told = metrics(sums, 3, filtering=True)
    assert told["no_negatives"].item() == pytest.approx(1 / 3)
    assert told["negatives"].item() == pytest.approx(7 / 3)
    assert told["filtered"].item() == pytest.approx(3 / 10)
    assert {"filtered", "masked_surrogate"}.isdisjoint(metrics(sums, 3, filtering=False))


def test_accuracy_counts_queries_that_have_a_negative() -> None:
    given = torch.zeros(3, 6, dtype=torch.float64)
    # Query 0 loses to a hard negative, query 1 loses to a masked document alone, query 2 has none.
    given[0, 3], given[1, 3], given[2, 0] = 1.0, 1.0, 1.0
    told = metrics(counted(given, POSITIVES, masks(), OWN), 3, filtering=True)
    assert told["accuracy"].item() == 1 / 2
    everything = torch.ones(3, 6, dtype=torch.bool)
    none = Masks(everything, torch.zeros_like(everything), None, everything)
    told = metrics(counted(given, POSITIVES, none, OWN), 3, filtering=False)
    assert (told["accuracy"].item(), told["no_negatives"].item()) == (0, 1)
    assert told["hard_share"].item() == 0


@pytest.mark.parametrize("dropped", [None, DROPPED])
@pytest.mark.parametrize("seed", range(3))
def test_the_hard_share_is_that_of_the_gradient(seed: int, dropped: Tensor | None) -> None:
    given, mask = scores(seed), masks(dropped)
    # With unit vectors as documents, the scores are the queries' own features.
    queries = given.clone().requires_grad_()
    documents = torch.eye(6, dtype=torch.float64)
    loss = info_nce(queries, documents, POSITIVES, temperature=1.0, excluded=mask.excluded)
    (gradient,) = torch.autograd.grad(loss, queries)
    gradient = gradient.masked_fill(mask.excluded, 0.0)
    told = metrics(counted(given, POSITIVES, mask, OWN), 3, filtering=False)
    expected = gradient[OWN].sum() / gradient.sum()
    torch.testing.assert_close(told["hard_share"], expected)
    assert 0 < expected < 1
