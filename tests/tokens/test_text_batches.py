from collections.abc import Iterator
from itertools import islice
from threading import get_ident

import numpy as np
import pytest

from embedkit.tokens.text_batches import estimated_tokens, one_ahead, text_batches

BUDGET = 512
TEXTS = [f"{'word ' * (number * 7919 % 40)}{number}" for number in range(2_000)]


def batches_of(texts: list[str]) -> list[list[str]]:
    batches = text_batches(texts, estimated_tokens(texts), BUDGET)
    return [[texts[row] for row in rows.tolist()] for rows in batches]


def test_every_text_is_in_one_batch_which_fits_the_budget() -> None:
    batches = batches_of(TEXTS)
    assert sorted(text for batch in batches for text in batch) == sorted(TEXTS)
    sizes = [len(batch) * estimated_tokens(batch)[0] for batch in batches]
    assert max(sizes) <= BUDGET
    assert min(sizes[:-1]) > BUDGET / 2
    lengths = np.concatenate([estimated_tokens(batch) for batch in batches])
    assert (np.diff(lengths) <= 0).all()


def test_a_text_beyond_the_budget_is_a_batch_of_its_own() -> None:
    assert batches_of(["", "x" * 4 * BUDGET, "y" * 4 * BUDGET])[:2] in (
        [["x" * 4 * BUDGET], ["y" * 4 * BUDGET]],
        [["y" * 4 * BUDGET], ["x" * 4 * BUDGET]],
    )
    assert batches_of([]) == []


def test_the_batches_of_whole_batches_are_these_batches() -> None:
    batches = batches_of(TEXTS)
    for some in (batches[::3], batches[5:9], batches[-1:], batches[::-1][:10]):
        texts = sorted(text for batch in some for text in batch)
        assert sorted(batches_of(texts)) == sorted(some)


def test_the_order_of_the_texts_does_not_matter() -> None:
    assert batches_of(TEXTS[::-1]) == batches_of(TEXTS)


def test_a_text_more_changes_few_batches() -> None:
    before = {tuple(batch) for batch in batches_of(TEXTS)}
    changed = []
    for number in range(20):
        after = {tuple(batch) for batch in batches_of([*TEXTS, "more " * number])}
        changed.append(len(after - before))
    assert np.mean(changed) < len(before) / 20


def test_four_characters_count_as_a_token() -> None:
    assert estimated_tokens(["", "x" * 400, "y" * 40]).tolist() == [2, 102, 12]


def test_the_next_item_is_made_while_one_is_used() -> None:
    made: list[int] = []
    threads = set()

    def make(number: int) -> int:
        threads.add(get_ident())
        made.append(number)
        return -number

    def items() -> Iterator[int]:
        yield from range(5)

    results = one_ahead(make, items())
    assert list(islice(results, 2)) == [0, -1]
    assert list(results) == [-2, -3, -4]
    assert made == [0, 1, 2, 3, 4]
    assert threads.isdisjoint({get_ident()})


def test_an_error_reaches_the_reader() -> None:
    results = one_ahead(lambda number: 1 // number, [1, 0, 1])
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)
