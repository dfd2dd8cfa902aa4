from collections.abc import Callable

import pytest
import torch
from support.tiny_bert import gradients, tiny_embedder
from torch import Tensor, nn

from embedkit.objectives.gradcache import Replay
from embedkit.tokens.batch import TokenBatch, chunks_by_budget

TOKENS = TokenBatch.from_lists(
    [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15], [16, 17], [18, 19, 20, 21], [5, 6, 7], [22]]
)
BUDGETS = [None, 1, 4, 7, 11, 1000]


def loss_of(embeddings: Tensor) -> Tensor:
    """A loss that depends on the order of the rows and joins all of them."""
    weights = torch.linspace(-1, 2, embeddings.numel(), dtype=torch.float64)
    joined = embeddings @ embeddings.T
    return (embeddings * weights.view_as(embeddings)).sum() + joined.logsumexp(1).sum()


def replayed(
    *, dropout: float, budget: int | None, key: int = 1, cached: bool = True
) -> tuple[Tensor, dict[str, Tensor]]:
    model = tiny_embedder(dropout=dropout)
    replay = Replay(model, TOKENS, budget=budget, key=key, cached=cached)
    loss_of(replay.embeddings).backward()
    replay.backward()
    return replay.embeddings.detach(), gradients(model)


@pytest.mark.parametrize("budget", BUDGETS)
def test_embeddings_and_gradients_are_those_of_one_forward(budget: int | None) -> None:
    model = tiny_embedder()
    embeddings = model(TOKENS)
    loss_of(embeddings).backward()
    actual = replayed(dropout=0.0, budget=budget)
    torch.testing.assert_close(actual, (embeddings.detach(), gradients(model)))


@pytest.mark.parametrize("budget", BUDGETS)
def test_with_dropout_caching_is_exact_against_the_same_chunks(budget: int | None) -> None:
    cached = replayed(dropout=0.3, budget=budget)
    kept = replayed(dropout=0.3, budget=budget, cached=False)
    torch.testing.assert_close(cached, kept, rtol=1e-12, atol=1e-12)
    assert torch.equal(cached[0], kept[0])


def test_another_key_draws_other_dropout() -> None:
    one, other = (replayed(dropout=0.3, budget=7, key=key) for key in (1, 2))
    assert not torch.allclose(one[0], other[0], atol=1e-3)
    name = "backbone.model.encoder.layer.0.output.dense.weight"
    assert not torch.allclose(one[1][name], other[1][name], atol=1e-3)


def test_a_second_forward_with_other_dropout_would_be_noticed() -> None:
    model = tiny_embedder(dropout=0.3)
    replay = Replay(model, TOKENS, budget=7, key=1)
    loss_of(replay.embeddings).backward()
    replay._key = 2
    replay.backward()
    name = "backbone.model.encoder.layer.0.output.dense.weight"
    right = replayed(dropout=0.3, budget=7, key=1)[1]
    assert not torch.allclose(gradients(model)[name], right[name], atol=1e-3)


def test_every_chunk_draws_dropout_of_its_own() -> None:
    # Sequences 0 and 5 are the same, and at this budget chunks of their own.
    embeddings, _ = replayed(dropout=0.3, budget=3)
    assert not torch.allclose(embeddings[0], embeddings[5], atol=1e-3)


class Counting(nn.Module):
    """Counts the tokens it is given, and whether a graph was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.seen: list[tuple[int, bool]] = []

    def forward(self, tokens: TokenBatch) -> Tensor:
        self.seen.append((tokens.num_tokens, torch.is_grad_enabled()))
        return self.weight * torch.ones(len(tokens), 1)


def seen(act: Callable[[Replay], None], budget: int | None) -> list[tuple[int, bool]]:
    model = Counting()
    act(Replay(model, TOKENS, budget=budget, key=0))
    return model.seen


def back_propagate(replay: Replay) -> None:
    replay.embeddings.sum().backward()
    replay.backward()


def test_chunks_are_encoded_without_a_graph_first_and_with_one_later() -> None:
    chunks = [int(TOKENS.lengths[chunk].sum()) for chunk in chunks_by_budget(TOKENS.lengths, 8)]
    assert len(chunks) > 2
    expected = [(size, False) for size in chunks] + [(size, True) for size in chunks]
    assert seen(back_propagate, budget=8) == expected


def test_without_a_budget_there_is_one_forward() -> None:
    assert seen(back_propagate, budget=None) == [(TOKENS.num_tokens, True)]


def test_going_back_before_the_loss_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="back-propagate the loss first"):
        seen(Replay.backward, budget=8)
