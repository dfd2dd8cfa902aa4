"""Two-stage gradient caching against one graph over the same chunks, on one rank and on several."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from objectives.test_contrastive import EVERYTHING, ROWS, TAU, counts, share, shares
from support.ranks import run_on_ranks
from support.small_contextual import contextual
from support.tiny_bert import gradients
from torch import Tensor, nn

from embedkit import distributed, rng
from embedkit.models.contextual.model import Contextual
from embedkit.objectives.contextual import ContextualObjective, context_rows
from embedkit.objectives.gradcache import Replay
from embedkit.recipe import Contrastive
from embedkit.tokens.batch import TokenBatch, chunks_by_budget

DOCUMENTS = len(share(EVERYTHING[0]).documents)
KEY = 5
PRECISE: dict[str, Any] = {"rtol": 1e-11, "atol": 1e-13}
# Of every query and its positive; seed 1 lets the filter drop some documents and keep others.
SURROGATE = nn.functional.normalize(
    torch.randn(len(ROWS), 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)),
    dim=-1,
)


@dataclass
class Expected:
    gradients: dict[str, Tensor]
    loss: float


def chunked(
    encode: Any, tokens: TokenBatch, budget: int | None, key: int, overhead: int = 0
) -> Tensor:
    """All of ``tokens`` in one graph, chunk by chunk, each with noise of its own."""
    chunks = chunks_by_budget(tokens.lengths + overhead, budget)
    parts = []
    for number, chunk in enumerate(chunks):
        torch.manual_seed(rng.fold_in(key, number))
        parts.append(encode(tokens.select(chunk)))
    return torch.cat(parts)[torch.cat(chunks).argsort()]


def near(query: int, document: int) -> bool:
    """Whether the surrogate finds the positive of one row as near to a query as its own."""
    scores = SURROGATE[query, 0] @ SURROGATE[:, 1].T
    return bool(scores[document] >= scores[query])


def in_one_graph(
    model: Contextual,
    groups: Sequence[range],
    budget: int | None,
    *,
    scale: float = 1.0,
    filtering: bool = False,
) -> Expected:
    """The mean loss where each group of rows is a rank, with its own context and candidates."""
    losses = []
    for rank, group in enumerate(groups):
        batch, key = share(group), rng.fold_in(KEY, rank)
        rows = context_rows(len(batch.documents), model.config.num_context, key)
        context = chunked(
            model.embed_context, batch.documents.select(rows), budget, rng.fold_in(key, "context")
        )
        encode, overhead = partial(model, context=context), model.config.num_prefix
        queries, vectors = (
            chunked(encode, tokens, budget, rng.fold_in(key, role), overhead)
            for role, tokens in (("queries", batch.queries), ("documents", batch.documents))
        )
        scores = queries @ vectors.T / TAU
        documents = [(row, ROWS[row].positive, ROWS[row].label) for row in group]
        documents += [(row, text, 0) for row in group for text in ROWS[row].negatives]
        for place, row in enumerate(group):
            dropped = [filtering and near(row, other) for other in group]
            dropped += [False] * (len(documents) - len(group))
            kept = [
                number == place or (counts(ROWS[row], text, label) and not dropped[number])
                for number, (_, text, label) in enumerate(documents)
            ]
            candidates = scores[place][torch.tensor(kept)]
            losses.append(candidates.logsumexp(0) - scores[place, place])
    mean = torch.stack(losses).mean()
    (mean * scale).backward()
    return Expected(gradients(model), mean.item())


def cached(
    model: Contextual,
    budget: int | None,
    *,
    scale: float = 1.0,
    key: int | None = None,
    filtering: bool = False,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    config = Contrastive(
        temperature=TAU,
        micro_batch_tokens=budget,
        cross_device=False,
        false_negatives="absolute" if filtering else "off",
    )
    batch = replace(share(EVERYTHING[0]), surrogate=SURROGATE)
    metrics = ContextualObjective(config).backward(
        model, batch, key=rng.fold_in(KEY, 0) if key is None else key, scale=scale
    )
    return gradients(model), metrics


NOISE: dict[str, dict[str, Any]] = {
    "no dropout": {},
    "dropout": {"dropout": 0.3},
    "context dropout": {"context_dropout": 0.2},
    "both": {"dropout": 0.3, "context_dropout": 0.2},
    "context dropped": {"dropout": 0.3, "context_dropout": 1.0},
}  # fmt: skip


# Fewer slots than documents, as many, and more. A text of the second stage costs its slots besides,
# so that the two stages have different chunks.
CASES = [
    pytest.param(budget, noise, slots, marks=() if quick else pytest.mark.slow)
    for budget in (None, 1, 17, 40, 1000)
    for noise in NOISE
    for slots in (4, DOCUMENTS, DOCUMENTS + 5)
    for quick in [(slots == 4 and noise == "both") or budget == 40]
]


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "noise", "slots"), CASES)
def test_caching_is_exact_against_the_same_chunks(
    budget: int | None, noise: str, slots: int
) -> None:
    settings: dict[str, Any] = {"num_context": slots, **NOISE[noise]}
    expected = in_one_graph(contextual(**settings), EVERYTHING, budget)
    actual, metrics = cached(contextual(**settings), budget)
    torch.testing.assert_close(actual, expected.gradients, **PRECISE)
    assert metrics["loss"].item() == pytest.approx(expected.loss, rel=1e-13)


@pytest.mark.parametrize("kind", ["neobert", "modernbert", "nomic_bert"])
@pytest.mark.parametrize("tied", [True, False])
def test_caching_is_exact_whatever_the_encoders(kind: str, tied: bool) -> None:
    settings: dict[str, Any] = {
        "kind": kind,
        "tied": tied,
        "context_dropout": 0.2,
        "soft_prompts": 2,
        "context_projection": True,
        "output_projection": True,
    }
    expected = in_one_graph(contextual(**settings), EVERYTHING, 23)
    actual, _ = cached(contextual(**settings), 23)
    torch.testing.assert_close(actual, expected.gradients, **PRECISE)
    assert all(gradient.abs().sum() > 0 for gradient in actual.values())


@pytest.mark.slow
def test_caching_is_exact_with_a_filter_of_false_negatives() -> None:
    settings: dict[str, Any] = {"dropout": 0.3, "context_dropout": 0.2}
    expected = in_one_graph(contextual(**settings), EVERYTHING, 17, filtering=True)
    actual, metrics = cached(contextual(**settings), 17, filtering=True)
    torch.testing.assert_close(actual, expected.gradients, **PRECISE)
    assert metrics["loss"].item() == pytest.approx(expected.loss, rel=1e-13)
    assert 0.1 < metrics["filtered"] < 0.9
    assert metrics["loss"] < cached(contextual(**settings), 17)[1]["loss"]


def test_without_dropout_chunks_do_not_matter() -> None:
    whole, _ = cached(contextual("neobert"), None)
    torch.testing.assert_close(cached(contextual("neobert"), 17)[0], whole)


def check(expected: Expected, budget: int | None) -> None:
    mine = distributed.share_of(len(ROWS), distributed.rank(), distributed.world_size())
    config = Contrastive(temperature=TAU, micro_batch_tokens=budget, cross_device=False)
    model = contextual("neobert", num_context=3)
    metrics = ContextualObjective(config).backward(
        model, share(range(len(ROWS))[mine]), key=rng.fold_in(KEY, distributed.rank()), scale=1.0
    )
    distributed.average_gradients(model.parameters())
    torch.testing.assert_close(gradients(model), expected.gradients)
    assert metrics["loss"].item() == pytest.approx(expected.loss)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    for parameter in model.parameters():
        everyone, _ = distributed.gather(parameter.detach().flatten()[None])
        assert (everyone == everyone[0]).all()


@pytest.mark.parametrize("budget", [None, 19])
@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.slow
def test_ranks_average_what_each_finds_in_its_own_context(
    world_size: int, budget: int | None
) -> None:
    groups = shares(world_size)
    expected = in_one_graph(contextual("neobert", num_context=3), groups, None)
    run_on_ranks(world_size, check, expected, budget)


def two_stages(model: Contextual, budget: int) -> tuple[Replay, list[Replay]]:
    """Both stages, with a gradient at the embeddings of the second."""
    batch = share(EVERYTHING[0])
    context = Replay(model.embed_context, batch.documents, budget=budget, key=1)
    encode = partial(model, context=context.embeddings)
    sides = [
        Replay(encode, tokens, budget=budget, key=2 + side)
        for side, tokens in enumerate((batch.queries, batch.documents))
    ]
    (sides[0].embeddings @ sides[1].embeddings.T).logsumexp(1).sum().backward()
    return context, sides


SETTINGS: dict[str, Any] = {"num_context": DOCUMENTS, "dropout": 0.3, "context_dropout": 0.2}


def replayed(change: Any = None, order: Sequence[int] = (0, 1)) -> dict[str, Tensor]:
    model = contextual(**SETTINGS)
    context, sides = two_stages(model, 9)
    if change is not None:
        change(context, sides)
    for side in order:
        sides[side].backward()
    context.backward()
    return gradients(model)


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor], part: str) -> float:
    assert one.keys() == other.keys()
    return max(
        float((one[name] - other[name]).norm() / other[name].norm().clamp(min=1e-12))
        for name in other
        if part in name and other[name].norm() > 1e-9
    )


def other_noise(_context: Replay, sides: list[Replay]) -> None:
    sides[0]._key = 99


def other_context_noise(context: Replay, _sides: list[Replay]) -> None:
    context._key = 99


def two_chunks_only(context: Replay, _sides: list[Replay]) -> None:
    context._chunks = context._chunks[:2]


def test_gradients_of_both_sides_gather_in_the_context_in_any_order() -> None:
    torch.testing.assert_close(replayed(order=(1, 0)), replayed(), **PRECISE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "hurt", "spared"),
    [
        (other_noise, "second", None),
        (other_context_noise, "first", "second"),
        (two_chunks_only, "first", "second"),
    ],
)
def test_a_mistake_that_leaves_the_loss_alone_would_be_noticed(
    mistake: Any, hurt: str, spared: str | None
) -> None:
    right, wrong = replayed(), replayed(mistake)
    assert largest_difference(wrong, right, hurt) > 0.05
    if spared:
        assert largest_difference(wrong, right, spared) < 1e-11


def test_a_side_left_out_would_be_noticed() -> None:
    right, wrong = replayed(), replayed(order=(0,))
    assert largest_difference(wrong, right, "first") > 0.05


def test_two_batches_may_be_encoded_before_either_goes_back() -> None:
    model = contextual(**SETTINGS)
    pairs = [two_stages(model, 9) for _ in range(2)]
    for context, sides in pairs:
        for each in (*sides, context):
            each.backward()
    twice = {name: 2 * gradient for name, gradient in replayed().items()}
    torch.testing.assert_close(gradients(model), twice, **PRECISE)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [2.0**16, 0.125])
def test_a_scale_counts_once_in_either_stage(scale: float) -> None:
    once, _ = cached(contextual(), 17)
    scaled, _ = cached(contextual(), 17, scale=scale)
    expected = {name: scale * gradient for name, gradient in once.items()}
    torch.testing.assert_close(scaled, expected, **PRECISE)


def test_gradients_of_the_batches_of_a_step_are_added() -> None:
    model = contextual()
    for _ in range(4):
        accumulated, _ = cached(model, 17, scale=0.25)
    torch.testing.assert_close(accumulated, cached(contextual(), 17)[0], **PRECISE)


def test_single_precision_is_close_and_bf16_points_the_same_way() -> None:
    exact, _ = cached(contextual("neobert"), 40)
    single, _ = cached(contextual("neobert").float(), 40)
    for name, gradient in single.items():
        torch.testing.assert_close(gradient.double(), exact[name], rtol=1e-3, atol=1e-4)
    half = contextual("neobert").float()
    half.autocast = torch.bfloat16
    rough, _ = cached(half, 40)
    assert cosine(rough, exact) > 0.99


def test_in_single_precision_caching_repeats_the_same_chunks() -> None:
    settings: dict[str, Any] = {"dropout": 0.3, "context_dropout": 0.2}
    expected = in_one_graph(contextual(**settings).float(), EVERYTHING, 17).gradients
    actual, _ = cached(contextual(**settings).float(), 17)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_under_autocast_caching_repeats_the_same_chunks() -> None:
    settings: dict[str, Any] = {"kind": "neobert", "context_dropout": 0.2}
    one, other = contextual(**settings).float(), contextual(**settings).float()
    one.autocast = other.autocast = torch.bfloat16
    expected = in_one_graph(one, EVERYTHING, 40).gradients
    assert cosine(cached(other, 40)[0], expected) > 0.9999


def cosine(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    flat = [
        torch.cat([each[name].flatten().double() for name in sorted(other)])
        for each in (one, other)
    ]
    return float(nn.functional.cosine_similarity(flat[0], flat[1], dim=0))


def test_activations_of_one_chunk_live_at_a_time() -> None:
    model = contextual(num_context=8)
    assert model.first is not None
    seen: dict[str, list[int]] = {"first": [], "second": []}

    def record(stage: str, _module: nn.Module, inputs: Any) -> None:
        if torch.is_grad_enabled():
            tokens = inputs[0]
            overhead = model.config.num_prefix if stage == "second" else 0
            seen[stage].append(tokens.num_tokens + overhead * len(tokens))

    model.first.register_forward_pre_hook(partial(record, "first"))
    model.second.register_forward_pre_hook(partial(record, "second"))
    cached(model, 17)
    for stage, chunks in seen.items():
        assert len(chunks) >= 2, stage
        assert max(chunks) <= 17, stage


def test_evaluation_mode_draws_nothing() -> None:
    noisy, quiet = contextual(**SETTINGS).eval(), contextual(num_context=DOCUMENTS).eval()
    torch.testing.assert_close(cached(noisy, 17)[0], cached(quiet, 17)[0], **PRECISE)


@pytest.mark.slow
def test_noise_and_context_depend_on_the_key_alone() -> None:
    found: list[Tensor] = []
    for key in (1, 1, 2):
        torch.manual_seed(len(found))
        found.append(cached(contextual(dropout=0.3), 17, key=key)[1]["loss"])
    assert found[0] == found[1] != found[2]


def test_the_context_is_drawn_without_replacement_and_anew_for_every_key() -> None:
    draws = [context_rows(11, 4, key).tolist() for key in range(200)]
    assert all(len(set(draw)) == 4 and set(draw) <= set(range(11)) for draw in draws)
    assert draws[7] == context_rows(11, 4, 7).tolist()
    counted = torch.bincount(torch.tensor(draws).flatten(), minlength=11)
    assert counted.min() > 40
    assert counted.max() < 110
    assert sorted(context_rows(3, 4, 1).tolist()) == [0, 1, 2]


def test_metrics_count_the_context_too() -> None:
    _, metrics = cached(contextual(num_context=DOCUMENTS), None)
    batch = share(EVERYTHING[0])
    assert metrics["tokens"] == batch.queries.num_tokens + 2 * batch.documents.num_tokens
    assert 0 <= metrics["accuracy"] <= 1
