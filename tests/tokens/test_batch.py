from itertools import pairwise

import pytest
import torch

from embedkit.tokens.batch import TokenBatch, chunks_by_budget

SEQUENCES = [[1, 2, 3], [4], [], [5, 6]]


def batch() -> TokenBatch:
    return TokenBatch.from_lists(SEQUENCES, [2, 0, 0, 1])


def lists(tokens: TokenBatch) -> list[list[int]]:
    ends = tokens.offsets.tolist()
    return [tokens.ids[a:b].tolist() for a, b in pairwise(ends)]


def test_sequences_lie_side_by_side() -> None:
    tokens = batch()
    assert tokens.ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert tokens.offsets.tolist() == [0, 3, 4, 4, 6]
    assert tokens.lengths.tolist() == [3, 1, 0, 2]
    assert (len(tokens), tokens.num_tokens) == (4, 6)


def test_without_prompt_lengths_no_token_is_prompt() -> None:
    assert TokenBatch.from_lists(SEQUENCES).prompt_lengths.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("rows", [[3, 0], [1], [2, 2], [0, 1, 2, 3], []])
def test_selected_sequences_keep_their_tokens_and_prompts(rows: list[int]) -> None:
    picked = batch().select(torch.tensor(rows, dtype=torch.int64))
    assert lists(picked) == [SEQUENCES[row] for row in rows]
    assert picked.prompt_lengths.tolist() == [[2, 0, 0, 1][row] for row in rows]


def test_positions_lead_back_to_the_tokens() -> None:
    tokens = batch()
    rows = torch.tensor([3, 0, 1])
    assert tokens.positions(rows).tolist() == [4, 5, 0, 1, 2, 3]
    assert torch.equal(tokens.ids[tokens.positions(rows)], tokens.select(rows).ids)


def test_padding_fills_up_on_the_right() -> None:
    input_ids, mask = batch().padded(pad_id=9)
    assert input_ids.tolist() == [[1, 2, 3], [4, 9, 9], [9, 9, 9], [5, 6, 9]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0]]


def test_moving_takes_the_ids_alone() -> None:
    moved = batch().to(torch.device("meta"))
    assert moved.ids.device.type == "meta"
    assert moved.offsets.tolist() == batch().offsets.tolist()


LENGTHS = torch.tensor([3, 8, 1, 5, 5, 2, 8, 1])


@pytest.mark.parametrize("budget", [1, 7, 8, 16, 17, 1000])
def test_chunks_hold_every_sequence_once_and_keep_to_the_budget(budget: int) -> None:
    chunks = chunks_by_budget(LENGTHS, budget)
    assert sorted(torch.cat(chunks).tolist()) == list(range(8))
    for chunk in chunks:
        padded = len(chunk) * int(LENGTHS[chunk].max())
        assert padded <= budget or len(chunk) == 1


def test_chunks_go_from_long_to_short_and_keep_the_order_of_equals() -> None:
    assert torch.cat(chunks_by_budget(LENGTHS, 9)).tolist() == [1, 6, 3, 4, 0, 5, 2, 7]


def test_without_a_budget_there_is_one_chunk() -> None:
    (chunk,) = chunks_by_budget(LENGTHS, None)
    assert len(chunk) == 8
