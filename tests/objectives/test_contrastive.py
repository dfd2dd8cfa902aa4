"""The objective against a loss written with loops, on one rank and on several."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import pytest
import torch
from support.ranks import run_on_ranks
from support.tiny_bert import gradients, tiny_embedder
from torch import Tensor

from embedkit import distributed
from embedkit.data.pairs.contrastive_batches import ContrastiveBatch
from embedkit.objectives import contrastive
from embedkit.objectives.contrastive import ContrastiveObjective
from embedkit.recipe import Contrastive
from embedkit.tokens.batch import TokenBatch

TAU = 0.5
WIDTH = 16
Text = tuple[int, ...]


@dataclass(frozen=True)
class Row:
    query: Text
    positive: Text
    negatives: tuple[Text, ...] = ()
    label: int = 0


# Texts are token ids. Four ranks hold 1, 2, 1 and 2 rows, and so different numbers of documents.
ROWS = [
    Row((2, 3), (10, 11, 12), ((20,), (21, 22))),
    Row((4,), (13,)),
    Row((5, 6, 7), (14, 15), ((23, 24, 25, 26),), label=1),
    Row((8,), (16, 17, 18), label=1),
    # The positive of row 0, brought anew; and a negative that is the query of row 1.
    Row((9, 2), (10, 11, 12), ((4,),)),
    # The query of row 1 with another positive; and a negative that is the positive of row 1.
    Row((4,), (19,), ((13,), (27, 28), (29,)), label=2),
]
EVERYTHING = [range(len(ROWS))]
WIDTHS = {WIDTH: 2.0, 8: 1.0, 3: 0.5}


def share(rows: range, *, in_batch_negatives: bool = True) -> ContrastiveBatch:
    """The batch of a rank that holds ``rows`` of ``ROWS``."""
    own = [ROWS[row] for row in rows]
    documents = [row.positive for row in own] + [text for row in own for text in row.negatives]
    owners = [*range(len(own)), *(n for n, row in enumerate(own) for _ in row.negatives)]
    labels = [row.label for row in own] + [0] * (len(documents) - len(own))
    return ContrastiveBatch(
        source="mine",
        size=len(ROWS),
        in_batch_negatives=in_batch_negatives,
        queries=TokenBatch.from_lists([row.query for row in own]),
        documents=TokenBatch.from_lists(documents),
        owners=torch.tensor(owners),
        query_hashes=torch.tensor([number_of(row.query) for row in own]),
        document_hashes=torch.tensor([number_of(text) for text in documents]),
        labels=torch.tensor(labels),
    )


def number_of(text: Text) -> int:
    return sum(30**place * token for place, token in enumerate(text))


@dataclass
class Expected:
    gradients: dict[str, Tensor]
    loss: float
    accuracy: float
    live: list[int]
    """Number of negatives of each query."""
    losses: dict[str, float]


def by_loops(
    groups: Sequence[range],
    *,
    in_batch_negatives: bool = True,
    symmetric: bool = False,
    widths: Mapping[int, float] = MappingProxyType({WIDTH: 1.0}),
    known: Mapping[Text, Text] = MappingProxyType({}),
) -> Expected:
    """What the objective must give where each group of rows shares its documents.

    ``widths`` are those that vectors are cut to, and what each counts in the mean; ``known`` has an
    answer of a query in other rows of the source.
    """
    model = tiny_embedder()
    by_width: dict[int, list[Tensor]] = {width: [] for width in widths}
    right, live = 0, []
    for group in groups:
        documents = [(row, ROWS[row].positive, ROWS[row].label) for row in group]
        documents += [(row, text, 0) for row in group for text in ROWS[row].negatives]
        vectors = model(TokenBatch.from_lists([text for _, text, _ in documents]))
        queries = model(TokenBatch.from_lists([ROWS[row].query for row in group]))
        positives = [*group, *[None] * (len(documents) - len(group))]
        kept = [
            [
                positive == row
                or (
                    counts(ROWS[row], text, label)
                    and known.get(ROWS[row].query) != text
                    and (in_batch_negatives or owner == row)
                )
                for positive, (owner, text, label) in zip(positives, documents, strict=True)
            ]
            for row in group
        ]
        for width, losses in by_width.items():
            scores = cosines(queries[:, :width], vectors[:, :width]) / TAU
            losses += losses_of(scores, kept, symmetric=symmetric)
        scores = cosines(queries, vectors)
        for place in range(len(group)):
            candidates = scores[place][torch.tensor(kept[place])]
            live.append(len(candidates) - 1)
            right += live[-1] > 0 and int((candidates <= scores[place, place]).all())
    means = {width: torch.stack(losses).mean() for width, losses in by_width.items()}
    terms = [weight * means[width] for width, weight in widths.items()]
    mean = torch.stack(terms).sum() / sum(widths.values())
    mean.backward()
    losses_by_width = {f"loss_{width}": each.item() for width, each in means.items()}
    accuracy = right / max(1, sum(count > 0 for count in live))
    return Expected(gradients(model), mean.item(), accuracy, live, losses_by_width)


def cosines(rows: Tensor, others: Tensor) -> Tensor:
    lengths = rows.norm(dim=1)[:, None] * others.norm(dim=1)
    return rows @ others.T / lengths


def losses_of(scores: Tensor, kept: list[list[bool]], *, symmetric: bool) -> list[Tensor]:
    losses = []
    for place in range(len(scores)):
        candidates = scores[place][torch.tensor(kept[place])]
        loss = candidates.logsumexp(0) - scores[place, place]
        if symmetric:
            asking = torch.tensor([kept[other][place] for other in range(len(scores))])
            reverse = scores[:, place][asking].logsumexp(0) - scores[place, place]
            loss = (loss + reverse) / 2
        losses.append(loss)
    return losses


def counts(row: Row, text: Text, label: int) -> bool:
    """Whether a document is a negative of the row's query, by what any rank knows."""
    answers = [other.positive for other in ROWS if other.query == row.query]
    return text != row.query and text not in answers and not (label and label == row.label)


def check(config: Contrastive, expected: Expected, in_batch_negatives: bool) -> None:
    mine = distributed.share_of(len(ROWS), distributed.rank(), distributed.world_size())
    batch = share(range(len(ROWS))[mine], in_batch_negatives=in_batch_negatives)
    model = tiny_embedder()
    metrics = ContrastiveObjective(config).backward(model, batch, key=1, scale=1.0)
    distributed.average_gradients(model.parameters())
    torch.testing.assert_close(gradients(model), expected.gradients)
    assert metrics["loss"].item() == pytest.approx(expected.loss)
    assert metrics["accuracy"].item() == pytest.approx(expected.accuracy)
    assert metrics["negatives"].item() == pytest.approx(sum(expected.live) / len(ROWS))
    assert metrics["no_negatives"].item() == pytest.approx(expected.live.count(0) / len(ROWS))
    assert metrics["tokens"].item() == sum(
        len(text) for row in ROWS for text in (row.query, row.positive, *row.negatives)
    )
    by_width = {name: each.item() for name, each in metrics.items() if name.startswith("loss_")}
    assert by_width == pytest.approx(expected.losses if config.matryoshka_dims else {})


def shares(world_size: int) -> list[range]:
    count = len(ROWS)
    return [
        range(count)[distributed.share_of(count, rank, world_size)] for rank in range(world_size)
    ]


@pytest.mark.parametrize("micro_batch_tokens", [None, 1, 5, 1000])
@pytest.mark.parametrize("world_size", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_gradients_depend_on_neither_ranks_nor_chunks(
    world_size: int, micro_batch_tokens: int | None
) -> None:
    config = Contrastive(temperature=TAU, micro_batch_tokens=micro_batch_tokens)
    run_on_ranks(world_size, check, config, by_loops(EVERYTHING), True)


# Padded, six queries take 18 tokens and thirteen documents 52.
@pytest.mark.parametrize(("micro_batch_tokens", "forwards"), [(None, 2), (70, 2), (69, 4)])
def test_both_sides_in_one_chunk_are_encoded_once(
    micro_batch_tokens: int | None, forwards: int
) -> None:
    model, calls = tiny_embedder(dropout=0.3), []
    model.register_forward_hook(lambda *_: calls.append(1))
    config = Contrastive(temperature=TAU, micro_batch_tokens=micro_batch_tokens)
    metrics = ContrastiveObjective(config).backward(model, share(*EVERYTHING), key=1, scale=1.0)
    assert len(calls) == forwards
    plain = tiny_embedder(dropout=0.3)
    expected = ContrastiveObjective(Contrastive(temperature=TAU)).backward(
        plain, share(*EVERYTHING), key=1, scale=1.0
    )
    assert torch.equal(metrics["loss"], expected["loss"])
    torch.testing.assert_close(gradients(model), gradients(plain), rtol=1e-12, atol=1e-12)


# A positive and a hard negative of rows that other ranks may hold, and a text of none.
KNOWN: dict[Text, Text] = {(2, 3): (16, 17, 18), (8,): (20,), (5, 6, 7): (30, 31)}


def check_known(config: Contrastive, expected: Expected) -> None:
    rows = range(len(ROWS))[
        distributed.share_of(len(ROWS), distributed.rank(), distributed.world_size())
    ]
    pairs = [
        (number_of(query), number_of(KNOWN[query]))
        for query in (ROWS[row].query for row in rows)
        if query in KNOWN
    ]
    # A rank knows the answers of its own queries, and may know none.
    answers = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    batch, model = replace(share(rows), known_answers=answers), tiny_embedder()
    metrics = ContrastiveObjective(config).backward(model, batch, key=1, scale=1.0)
    distributed.average_gradients(model.parameters())
    torch.testing.assert_close(gradients(model), expected.gradients)
    assert metrics["loss"].item() == pytest.approx(expected.loss)
    assert metrics["negatives"].item() == pytest.approx(sum(expected.live) / len(ROWS))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_answers_known_from_other_rows_are_no_negatives(world_size: int, symmetric: bool) -> None:
    config = Contrastive(temperature=TAU, symmetric=symmetric)
    expected = by_loops(EVERYTHING, symmetric=symmetric, known=KNOWN)
    assert sum(expected.live) == sum(by_loops(EVERYTHING).live) - 2
    run_on_ranks(world_size, check_known, config, expected)


@pytest.mark.parametrize("scores", [1, 30, 60])
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.slow
def test_nor_on_how_many_scores_exist_at_a_time(
    world_size: int, scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contrastive, "_SCORES", scores)
    config = Contrastive(temperature=TAU, micro_batch_tokens=5, symmetric=True)
    run_on_ranks(world_size, check, config, by_loops(EVERYTHING, symmetric=True), True)


@pytest.mark.parametrize("micro_batch_tokens", [None, 5])
@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.slow
def test_without_cross_device_a_rank_scores_its_own_documents(
    world_size: int, micro_batch_tokens: int | None
) -> None:
    config = Contrastive(temperature=TAU, micro_batch_tokens=micro_batch_tokens, cross_device=False)
    run_on_ranks(world_size, check, config, by_loops(shares(world_size)), True)


@pytest.mark.parametrize("cross_device", [True, False])
@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.slow
def test_both_directions_share_their_candidates_too(world_size: int, cross_device: bool) -> None:
    groups = EVERYTHING if cross_device else shares(world_size)
    config = Contrastive(temperature=TAU, symmetric=True, cross_device=cross_device)
    run_on_ranks(world_size, check, config, by_loops(groups, symmetric=True), True)


# Without in-batch negatives the reverse direction has nothing to tell a positive's query from.
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("cross_device", [True, False])
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.slow
def test_a_source_without_in_batch_negatives_scores_each_querys_own(
    world_size: int, cross_device: bool, symmetric: bool
) -> None:
    config = Contrastive(temperature=TAU, cross_device=cross_device, symmetric=symmetric)
    run_on_ranks(world_size, check, config, by_loops(EVERYTHING, in_batch_negatives=False), False)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("micro_batch_tokens", [None, 5])
@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.slow
def test_gradients_of_cut_vectors_depend_on_neither_ranks_nor_chunks(
    world_size: int, micro_batch_tokens: int | None, symmetric: bool
) -> None:
    config = Contrastive(
        temperature=TAU,
        micro_batch_tokens=micro_batch_tokens,
        symmetric=symmetric,
        matryoshka_dims=tuple(WIDTHS),
        matryoshka_weights=tuple(WIDTHS.values()),
    )
    expected = by_loops(EVERYTHING, symmetric=symmetric, widths=WIDTHS)
    run_on_ranks(world_size, check, config, expected, True)


def test_without_weights_every_width_counts_the_same() -> None:
    config = Contrastive(temperature=TAU, matryoshka_dims=(8, 3))
    check(config, by_loops(EVERYTHING, widths={8: 1.0, 3: 1.0}), True)


def test_the_settings_make_a_difference() -> None:
    # Or the tests above would hold of an objective that ignores them.
    losses = [
        by_loops(EVERYTHING).loss,
        by_loops(shares(2)).loss,
        by_loops(EVERYTHING, symmetric=True).loss,
        by_loops(EVERYTHING, in_batch_negatives=False).loss,
        by_loops(EVERYTHING, widths=WIDTHS).loss,
        by_loops(EVERYTHING, widths=dict.fromkeys(WIDTHS, 1.0)).loss,
    ]
    assert len({round(loss, 6) for loss in losses}) == len(losses)


def test_the_examples_have_every_kind_of_false_negative() -> None:
    def negative(row: int, text: Text, label: int = 0) -> bool:
        return counts(ROWS[row], text, label)

    assert not negative(0, ROWS[4].positive)
    assert not negative(1, ROWS[5].positive)
    assert not negative(1, ROWS[4].negatives[0])
    assert not negative(1, ROWS[5].negatives[0])
    assert not negative(2, ROWS[3].positive, ROWS[3].label)
    assert negative(3, ROWS[5].positive, ROWS[5].label)


def test_gradients_are_added_and_scaled() -> None:
    once, twice = tiny_embedder(), tiny_embedder()
    objective, batch = ContrastiveObjective(Contrastive()), share(EVERYTHING[0])
    whole = objective.backward(once, batch, key=1, scale=1.0)
    for _ in range(2):
        half = objective.backward(twice, batch, key=1, scale=0.5)
    torch.testing.assert_close(gradients(twice), gradients(once))
    torch.testing.assert_close(half, whole)


def test_dropout_depends_on_the_key_alone() -> None:
    objective = ContrastiveObjective(Contrastive(micro_batch_tokens=8))
    found: list[Tensor] = []
    for key in (1, 1, 2):
        torch.manual_seed(len(found))
        model = tiny_embedder(dropout=0.3)
        objective.backward(model, share(EVERYTHING[0]), key=key, scale=1.0)
        found.append(gradients(model)["backbone.model.embeddings.word_embeddings.weight"])
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0], found[2], atol=1e-3)


def test_queries_and_documents_draw_dropout_of_their_own() -> None:
    # Equal texts under equal noise would score the same in both directions.
    tokens = TokenBatch.from_lists([(3, 4, 5), (6, 7)])
    batch = ContrastiveBatch(
        source="mine",
        size=2,
        in_batch_negatives=True,
        queries=tokens,
        documents=tokens,
        owners=torch.tensor([0, 1]),
        query_hashes=torch.tensor([1, 2]),
        document_hashes=torch.tensor([3, 4]),
        labels=torch.tensor([0, 0]),
    )
    one_way, both_ways = (
        ContrastiveObjective(Contrastive(symmetric=symmetric)).backward(
            tiny_embedder(dropout=0.5), batch, key=1, scale=1.0
        )["loss"]
        for symmetric in (False, True)
    )
    assert abs(one_way - both_ways) > 1e-3
