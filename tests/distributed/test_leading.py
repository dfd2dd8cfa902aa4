from contextlib import suppress
from typing import Any

import pytest
import torch
from support.ranks import run_on_ranks
from torch import Tensor

from embedkit import distributed
from embedkit.distributed import Part, RankFailedError, lead, together

noted: list[str] = []


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


@pytest.mark.parametrize("ranks", [2, 3])
def test_each_rank_gets_its_share_of_the_rows_of_rank_0(ranks: int) -> None:
    run_on_ranks(ranks, check_scatter)


def check_scatter() -> None:
    rows = torch.arange(7) if distributed.is_main() else "own object of another rank"
    (found,) = lead(lambda: together(double_share, rows), rows)
    assert found.tolist() == [0, 2, 4, 6, 8, 10, 12]
    (alone,) = together(double_share, torch.arange(3))
    assert alone.tolist() == [0, 2, 4]


def double_share(rows: Any, part: Part) -> tuple[Tensor]:
    share = distributed.scatter(rows, part)
    assert len(share) <= 7 // part.ranks + 1
    return (2 * share,)


def test_apart_from_the_others_each_rank_works_alone() -> None:
    run_on_ranks(3, work_apart)


def work_apart() -> None:
    def work() -> list[int]:
        assert distributed.helpers() == 2
        with distributed.apart(note, "first"), suppress(ZeroDivisionError):
            assert distributed.helpers() == 0
            assert not distributed.is_apart()
            assert len(together(multiples, 5, 2)[0]) == 2
            raise ZeroDivisionError
        return together(multiples, 1, 1)[1].tolist()

    assert lead(work, 1) == [0, 0, 1, 0, 1, 2]
    assert not distributed.is_apart()
    assert noted == ([] if distributed.is_main() else ["first"])


def note(own: int, name: str) -> None:
    assert distributed.is_apart()
    assert len(together(multiples, own, 2)[0]) == 2
    noted.append(name)
