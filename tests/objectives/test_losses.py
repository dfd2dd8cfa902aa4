import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor

from embedkit.objectives.losses import false_negatives, info_nce, similarity

TAU = 0.05


def embeddings(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, 8, generator=generator, dtype=torch.float64)
    return F.normalize(rows, dim=-1).requires_grad_()


def reference(columns: list[Tensor], **options: object) -> Tensor:
    """The loss of sentence-transformers, which needs no model for this."""
    loss = MultipleNegativesRankingLoss(None, scale=1 / TAU, **options)  # type: ignore[arg-type]
    return loss.compute_loss_from_embeddings(columns, labels=torch.tensor([]))


def value_and_gradients(
    loss: Callable[[list[Tensor]], Tensor], columns: list[Tensor]
) -> tuple[Tensor, ...]:
    # The reference normalizes anew, which takes the gradient along each vector away.
    value = loss([F.normalize(column, dim=-1) for column in columns])
    return (value.detach(), *torch.autograd.grad(value, columns))


@pytest.mark.parametrize("num_negatives", [0, 1, 3])
def test_agrees_with_sentence_transformers(num_negatives: int) -> None:
    columns = [embeddings(6, seed) for seed in range(2 + num_negatives)]

    def ours(columns: list[Tensor]) -> Tensor:
        documents = torch.cat(columns[1:])
        return info_nce(columns[0], documents, torch.arange(6), temperature=TAU)

    torch.testing.assert_close(
        value_and_gradients(ours, columns), value_and_gradients(reference, columns)
    )


def test_both_directions_agree_with_sentence_transformers() -> None:
    columns = [embeddings(6, seed) for seed in range(3)]

    def ours(columns: list[Tensor]) -> Tensor:
        queries, positives, negatives = columns
        own = torch.arange(6)
        forward = info_nce(queries, torch.cat([positives, negatives]), own, temperature=TAU)
        return (forward + info_nce(positives, queries, own, temperature=TAU)) / 2

    def theirs(columns: list[Tensor]) -> Tensor:
        both = ("query_to_doc", "doc_to_query")
        return reference(columns, directions=both, partition_mode="per_direction")

    torch.testing.assert_close(
        value_and_gradients(ours, columns), value_and_gradients(theirs, columns)
    )


def test_a_sum_is_the_mean_times_the_queries() -> None:
    queries, documents = embeddings(6, 0), embeddings(9, 1)
    own = torch.arange(3, 9)
    mean = info_nce(queries, documents, own, temperature=TAU)
    total = info_nce(queries, documents, own, temperature=TAU, reduction="sum")
    torch.testing.assert_close(total, 6 * mean)


def test_an_excluded_document_has_no_part_in_loss_or_gradient() -> None:
    queries, documents = embeddings(3, 0), embeddings(5, 1)
    excluded = torch.zeros(3, 5, dtype=torch.bool)
    excluded[:, [1, 3]] = True
    without = documents.detach()[[0, 2, 4]].requires_grad_()
    own = torch.tensor([0, 2, 4])
    loss = info_nce(queries, documents, own, temperature=TAU, excluded=excluded)
    expected = info_nce(queries, without, torch.arange(3), temperature=TAU)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    assert documents.grad is not None
    torch.testing.assert_close(documents.grad[[0, 2, 4]], without.grad)
    assert not documents.grad[[1, 3]].any()


def test_a_querys_own_positive_stays_whatever_is_excluded() -> None:
    queries, documents = embeddings(3, 0), embeddings(3, 1)
    everything = torch.ones(3, 3, dtype=torch.bool)
    loss = info_nce(queries, documents, torch.arange(3), temperature=TAU, excluded=everything)
    assert loss == 0
    assert everything.all()


def test_scores_keep_single_precision_under_autocast() -> None:
    queries, documents = embeddings(4, 0).float(), embeddings(4, 1).float()
    expected = queries @ documents.T / TAU
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = similarity(queries, documents, TAU)
        half = similarity(queries.bfloat16(), documents.bfloat16(), TAU)
    torch.testing.assert_close(actual, expected)
    assert half.dtype == torch.float32


# Rows of a batch as (query, positive); what else lies there are documents without a row.
ASKED = ["a", "b", "c", "a", "e", "f"]
POSITIVES = ["A", "B", "A", "D", "b", "f"]
OTHERS = ["x", "c", "D", "B"]


def is_false_negative(query: str, document: str) -> bool:
    return document == query or (query, document) in zip(ASKED, POSITIVES, strict=True)


@pytest.mark.parametrize(
    ("query", "document"),
    [
        pytest.param("c", "A", id="its positive, brought by another row"),
        pytest.param("a", "D", id="the positive of the same query in another row"),
        pytest.param("c", "c", id="its own text among the hard negatives"),
        pytest.param("b", "b", id="its own text as the positive of another row"),
        pytest.param("b", "B", id="its positive among the hard negatives"),
    ],
)
def test_the_examples_hold_every_kind_of_false_negative(query: str, document: str) -> None:
    assert is_false_negative(query, document)


def test_false_negatives_are_found_and_nothing_else() -> None:
    names = {text: number for number, text in enumerate(sorted({*ASKED, *POSITIVES, *OTHERS}))}
    documents = POSITIVES + OTHERS
    found = false_negatives(*(
        torch.tensor([names[text] for text in texts])
        for texts in (ASKED, POSITIVES, ASKED, documents)
    ))  # fmt: skip
    expected = [[is_false_negative(query, each) for each in documents] for query in ASKED]
    assert found.tolist() == expected


def test_a_rank_may_ask_for_its_own_queries_alone() -> None:
    hashes = torch.randint(1, 6, (3, 12), generator=torch.Generator().manual_seed(0))
    queries, positives, documents = hashes
    whole = false_negatives(queries, positives, queries, documents)
    part = false_negatives(queries[4:7], positives, queries, documents)
    assert torch.equal(part, whole[4:7])
    assert 0 < whole.sum() < whole.numel()


def test_the_order_of_rows_does_not_matter() -> None:
    hashes = torch.randint(1, 5, (2, 8), generator=torch.Generator().manual_seed(1))
    queries, positives = hashes
    expected = false_negatives(queries, positives, queries, positives)
    for order in itertools.islice(itertools.permutations(range(8)), 0, 40_000, 5000):
        shuffled = torch.tensor(order)
        found = false_negatives(queries, positives[shuffled], queries[shuffled], positives)
        assert torch.equal(found, expected)
