import numpy as np
import pytest
import torch
from support.searches import assert_best, unit
from torch import Tensor

from embedkit.data import exact_search
from embedkit.data.exact_search import ExactSearch, best_by, dot_products, ordered

CPU = torch.device("cpu")
TORCH = best_by(dot_products)


@pytest.mark.parametrize("at_a_time", [1, 100, 2**25])
@pytest.mark.parametrize("count", [1, 7, 50])
def test_torch_finds_the_best_however_few_scores_exist_at_a_time(
    count: int, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(exact_search._SCORES, "cpu", at_a_time)
    queries, documents = unit(5, seed=1), unit(50).astype(np.float16)
    assert_best(ExactSearch(documents, CPU, TORCH), queries, documents, count)


def test_a_single_query_reads_few_documents_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(exact_search._VALUES, "cpu", 80)
    read = []

    def noted(queries: Tensor, documents: Tensor, count: int) -> tuple[Tensor, Tensor]:
        read.append(len(documents))
        return TORCH(queries, documents, count)

    queries, documents = unit(1, seed=1), unit(50)
    assert_best(ExactSearch(documents, CPU, noted), queries, documents, 50)
    assert read == [10] * 5


def test_what_is_not_there_ends_in_minus_one() -> None:
    scores, numbers = ExactSearch(unit(2), CPU, TORCH).top(unit(3), 4)
    assert (numbers[:, 2:] == -1).all()
    assert (numbers[:, :2] >= 0).all()
    assert np.isneginf(scores[:, 2:]).all()


def test_equal_scores_stand_in_the_order_of_the_documents() -> None:
    same = np.repeat(unit(1), 5, axis=0)
    assert ExactSearch(same, CPU, TORCH).top(unit(1), 5)[1].tolist() == [[0, 1, 2, 3, 4]]


def test_scores_are_ordered_as_two_sorts_do() -> None:
    rng = np.random.default_rng(0)
    scores = torch.from_numpy(rng.choice([-2.5, -1e-9, -0.0, 0.0, 3e-8, 7.0, np.inf], (4, 40)))
    numbers = torch.from_numpy(rng.permuted(np.tile(np.arange(-3, 37), (4, 1)), axis=1))
    numbers = numbers.clamp(min=-1)
    found = ordered(scores.float(), numbers, 45)
    for row in range(4):
        pairs = zip(scores[row].tolist(), numbers[row].tolist(), strict=True)
        there = [pair for pair in pairs if pair[1] >= 0]
        expected = sorted(there, key=lambda pair: (-pair[0], pair[1]))
        assert found[1][row].tolist() == [number for _, number in expected] + [-1] * 8
        same = [np.float32(score) for score, _ in expected] + [-np.inf] * 8
        assert found[0][row].tolist() == same


def test_equal_scores_of_several_blocks_stand_in_the_order_of_the_documents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(exact_search._SCORES, "cpu", 3)
    same = np.repeat(unit(1), 8, axis=0)
    assert ExactSearch(same, CPU, TORCH).top(unit(1), 5)[1].tolist() == [[0, 1, 2, 3, 4]]
