"""The filter of false negatives against loops in double precision, on one rank and on two."""

from dataclasses import dataclass

import pytest
import torch
from support.ranks import run_on_ranks
from support.tiny_bert import gradients, tiny_embedder
from torch import Tensor

from embedkit import distributed
from embedkit.data.pairs.contrastive_batches import ContrastiveBatch
from embedkit.objectives import contrastive
from embedkit.objectives.contrastive import ContrastiveObjective
from embedkit.objectives.filtering import Filter
from embedkit.recipe import Contrastive
from embedkit.tokens.batch import TokenBatch

TAU = 0.5
QUERIES = [(2, 3), (4,), (5, 6, 7), (8,), (9, 2)]
POSITIVES = [(10, 11, 12), (13,), (14, 15), (16, 17, 18), (19,)]
HARD: dict[int, list[tuple[int, ...]]] = {0: [(20,)], 3: [(21, 22), (23,)], 4: [(24,)]}
# Of query and positive, as the surrogate saw them. The positives of rows 1 and 2 are one to it.
ANGLES = [(0.0, 0.5), (0.3, 0.9), (1.0, 0.9), (2.0, 1.2), (1.1, 3.1)]
SURROGATE = torch.tensor([[(a, b)] for a, b in ANGLES], dtype=torch.float64)
SURROGATE = torch.stack([SURROGATE.cos(), SURROGATE.sin()], dim=-1)[:, 0]
FILTERS = [("absolute", 0.0), ("absolute", 0.2), ("relative", 0.0), ("relative", 0.55)]


def dropped(query: int, document: int, config: Contrastive) -> bool:
    """Whether the filter takes the positive of one row from the negatives of another."""
    score = float(SURROGATE[query, 0] @ SURROGATE[document, 1])
    own = float(SURROGATE[query, 0] @ SURROGATE[query, 1])
    margin = config.margin * (abs(own) if config.false_negatives == "relative" else 1.0)
    # Only the loops may differ from the batch, not the rounding of a tie.
    return config.false_negatives != "off" and score >= own - margin - 1e-6


@dataclass
class Expected:
    gradients: dict[str, Tensor]
    loss: float
    filtered: float


def by_loops(groups: list[range], config: Contrastive) -> Expected:
    """What the objective must give where each group of rows shares its documents."""
    model = tiny_embedder()
    losses, taken, negatives = [], 0, 0
    for group in groups:
        queries = {row: encoded(model, QUERIES[row]) for row in group}
        positives = {row: encoded(model, POSITIVES[row]) for row in group}
        hard = [encoded(model, text) for row in group for text in HARD.get(row, [])]
        for row in group:
            others = [each for each in group if each != row]
            kept = [each for each in others if not dropped(row, each, config)]
            taken += len(others) - len(kept)
            negatives += len(others) + len(hard)
            candidates = [positives[each] for each in [row, *kept]] + hard
            loss = first_of(queries[row], candidates)
            if config.symmetric:
                asking = [each for each in others if not dropped(each, row, config)]
                candidates = [queries[each] for each in [row, *asking]]
                loss = (loss + first_of(positives[row], candidates)) / 2
            losses.append(loss)
    mean = torch.stack(losses).mean()
    mean.backward()
    return Expected(gradients(model), mean.item(), taken / negatives)


def encoded(model: torch.nn.Module, text: tuple[int, ...]) -> Tensor:
    vector: Tensor = model(TokenBatch.from_lists([text]))[0]
    return vector


def first_of(vector: Tensor, candidates: list[Tensor]) -> Tensor:
    scores = torch.stack(candidates) @ vector / TAU
    return scores.logsumexp(0) - scores[0]


def share(rows: range) -> ContrastiveBatch:
    """The batch of a rank that holds ``rows``."""
    hard = [(place, text) for place, row in enumerate(rows) for text in HARD.get(row, [])]
    documents = [POSITIVES[row] for row in rows] + [text for _, text in hard]
    return ContrastiveBatch(
        source="mine",
        size=len(QUERIES),
        in_batch_negatives=True,
        queries=TokenBatch.from_lists([QUERIES[row] for row in rows]),
        documents=TokenBatch.from_lists(documents),
        owners=torch.tensor([*range(len(rows)), *(place for place, _ in hard)]),
        query_hashes=torch.tensor([QUERIES[row][0] for row in rows]),
        document_hashes=torch.tensor([100 + text[0] for text in documents]),
        labels=torch.zeros(len(documents), dtype=torch.int64),
        surrogate=SURROGATE[list(rows)],
    )


def part(rank: int, world_size: int) -> range:
    return range(len(QUERIES))[distributed.share_of(len(QUERIES), rank, world_size)]


def check(config: Contrastive, expected: Expected) -> None:
    model = tiny_embedder()
    batch = share(part(distributed.rank(), distributed.world_size()))
    batch = batch.to(torch.device("cpu"))
    metrics = ContrastiveObjective(config).backward(model, batch, key=1, scale=1.0)
    distributed.average_gradients(model.parameters())
    torch.testing.assert_close(gradients(model), expected.gradients)
    assert metrics["loss"].item() == pytest.approx(expected.loss)
    if config.false_negatives == "off":
        assert "filtered" not in metrics
    else:
        assert metrics["filtered"].item() == pytest.approx(expected.filtered)


@pytest.mark.parametrize(("kind", "margin"), FILTERS)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_filter_is_that_of_the_loops(
    world_size: int, symmetric: bool, kind: str, margin: float
) -> None:
    config = filtering(kind, margin, symmetric=symmetric)
    run_on_ranks(world_size, check, config, by_loops([range(len(QUERIES))], config))


@pytest.mark.parametrize(("kind", "margin"), FILTERS)
@pytest.mark.slow
def test_a_rank_that_shares_no_documents_filters_its_own(kind: str, margin: float) -> None:
    config = filtering(kind, margin, cross_device=False)
    expected = by_loops([part(rank, 2) for rank in range(2)], config)
    run_on_ranks(2, check, config, expected)


def test_it_does_not_depend_on_how_many_scores_exist_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contrastive, "_SCORES", 20)
    config = filtering("absolute", 0.3, symmetric=True)
    check(config, by_loops([range(len(QUERIES))], config))


def test_switched_off_nothing_is_dropped_and_nothing_logged() -> None:
    config = Contrastive(temperature=TAU)
    check(config, by_loops([range(len(QUERIES))], config))


def test_what_equals_the_positive_is_dropped_however_a_product_is_rounded() -> None:
    vectors = torch.randn(100, 384, generator=torch.Generator().manual_seed(0))
    positives = torch.nn.functional.normalize(vectors, dim=1).half().repeat(2, 1)
    given = torch.stack([positives, positives], dim=1)
    found = Filter(given, 201, lambda rows: (rows, 0), filtering("absolute", 0.0))
    # Each positive is there twice, and a hard negative last.
    expected = torch.eye(100, dtype=torch.bool).repeat(2, 2)
    everything = slice(None)
    assert torch.equal(found.dropped(everything, everything)[:, :200], expected)
    assert not found.dropped(everything, slice(200, 201)).any()


def test_the_settings_make_a_difference() -> None:
    # Or the tests above would hold of an objective that ignores them.
    everything = [range(len(QUERIES))]
    # Without a margin absolute and relative are one.
    configs = [filtering(kind, margin) for kind, margin in FILTERS if (kind, margin) != FILTERS[2]]
    configs += [Contrastive(temperature=TAU), filtering("absolute", 0.0, symmetric=True)]
    configs += [filtering("absolute", 0.55)]
    losses = [by_loops(everything, config).loss for config in configs]
    assert len({round(loss, 6) for loss in losses}) == len(losses)


def filtering(kind: str, margin: float, **changes: bool) -> Contrastive:
    return Contrastive.model_validate(
        {"temperature": TAU, "false_negatives": kind, "margin": margin, **changes}
    )
