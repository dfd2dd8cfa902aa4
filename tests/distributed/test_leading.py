import pytest
import torch
from support.ranks import run_on_ranks
from torch import Tensor

from embedkit import distributed
from embedkit.distributed import Part, RankFailedError, lead, together


def multiples(own: int, part: Part, count: int) -> tuple[Tensor, Tensor]:
    """Every rank's multiples of its own number, as many as its rank and ``count``."""
    if count < 0 and part.rank == part.ranks - 1:
        raise ValueError("too few")
    rows = torch.arange(abs(count) + part.rank)
    return rows * own, rows


def test_alone_a_rank_does_all_the_work() -> None:
    values, rows = together(multiples, 5, 3)
    assert values.tolist() == [0, 5, 10]
    assert lead(lambda: rows.tolist(), 5) == [0, 1, 2]


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_rank_0_asks_for_is_done_by_all(ranks: int) -> None:
    run_on_ranks(ranks, check_shares)


def check_shares() -> None:
    own = 10 ** distributed.rank()
    # Each rank multiplies its own number; the work is that of rank 0, its result everyone's.
    found = lead(lambda: [ask(own, count) for count in (2, -1, 1)], own)
    failed = "rank {}: ValueError: too few"
    expected = {2: [[0, 1, 0, 10, 20], failed.format(1), [0, 0, 10]]}
    of_last = [0, 0, 10, 0, 100, 200]
    expected[3] = [[*expected[2][0], 0, 100, 200, 300], failed.format(2), of_last]
    assert found == expected[distributed.world_size()]
    # Afterwards every rank works alone again.
    assert len(together(multiples, own, 1)[0]) == 1


def ask(own: int, count: int) -> list[int] | str:
    try:
        return together(multiples, own, count)[0].tolist()
    except RankFailedError as error:
        return str(error)
