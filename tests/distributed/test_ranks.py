import pytest
import torch
from support.ranks import run_on_ranks
from torch import Tensor, nn

from embedkit import distributed
from embedkit.distributed import ranks
from embedkit.errors import UserError


def ragged_rows() -> list[Tensor]:
    """Rank r's rows: r + 1 of them, in double precision."""
    return [torch.full((rank + 1, 2), float(rank), dtype=torch.float64) for rank in range(3)]


@pytest.mark.parametrize(
    ("count", "world_size"), [(8, 1), (8, 2), (8, 3), (7, 4), (2, 4), (2048, 24)]
)
def test_shares_partition_what_there_is(count: int, world_size: int) -> None:
    parts = [
        range(count)[distributed.share_of(count, rank, world_size)] for rank in range(world_size)
    ]
    assert [each for part in parts for each in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_one_process_is_its_own_group() -> None:
    rows = torch.ones(2, 3)
    assert (distributed.rank(), distributed.world_size()) == (0, 1)
    assert distributed.gather(rows) == (rows, 0)
    assert distributed.on_main(lambda: 5) == 5


def test_rows_are_gathered_in_rank_order_whatever_their_number() -> None:
    run_on_ranks(3, check_gather)


def check_gather() -> None:
    rank = distributed.rank()
    gathered, begin = distributed.gather(ragged_rows()[rank])
    assert begin == [0, 1, 3][rank]
    torch.testing.assert_close(gathered, torch.cat(ragged_rows()))


def test_a_rank_may_have_no_rows() -> None:
    run_on_ranks(2, check_gather_of_nothing)


def check_gather_of_nothing() -> None:
    rows = torch.ones(2 * distributed.rank(), 3)
    gathered, begin = distributed.gather(rows)
    assert (gathered.shape, begin) == ((2, 3), 0)


def test_the_gradient_of_a_row_sums_what_all_ranks_asked_of_it() -> None:
    run_on_ranks(3, check_gradient_of_gather)


def check_gradient_of_gather() -> None:
    rank = distributed.rank()
    mine = ragged_rows()[rank].requires_grad_()
    gathered, begin = distributed.gather(mine)
    # Rank r asks r + 1 times the row's number of every row: 6 times in all.
    numbers = torch.arange(6, dtype=torch.float64)[:, None]
    ((rank + 1) * numbers * gathered).sum().backward()
    expected = 6 * numbers[begin : begin + rank + 1].expand(-1, 2)
    torch.testing.assert_close(mine.grad, expected)


def test_gathering_leaves_the_gradients_of_others_alone() -> None:
    run_on_ranks(2, check_gradient_beside_gather)


def check_gradient_beside_gather() -> None:
    mine = torch.zeros(1, 2, requires_grad=True)
    weight = torch.ones(2, 2, requires_grad=True)
    other = 1 * weight
    gathered, _ = distributed.gather(mine)
    # Both terms of a sum receive one and the same gradient tensor, the later term first.
    ((gathered + other) * torch.ones(2, 2)).sum().backward()
    torch.testing.assert_close(weight.grad, torch.ones(2, 2))
    torch.testing.assert_close(mine.grad, torch.full((1, 2), 2.0))


@pytest.mark.parametrize("bucket", [1, 5, 100])
def test_gradients_become_their_mean_over_ranks(
    bucket: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "_BUCKET_ELEMENTS", bucket)
    run_on_ranks(2, check_average)


def check_average() -> None:
    rank = distributed.rank()
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in ((2, 2), (3,), (1,))]
    for number, parameter in enumerate(parameters[:2]):
        parameter.grad = torch.full_like(parameter, 10.0 * number + rank)
    distributed.average_gradients(parameters)
    torch.testing.assert_close(parameters[0].grad, torch.full((2, 2), 0.5))
    torch.testing.assert_close(parameters[1].grad, torch.full((3,), 10.5))
    assert parameters[2].grad is None


def test_ranks_agree_on_sums_and_flags() -> None:
    run_on_ranks(3, check_agreement)


def check_agreement() -> None:
    device, rank = torch.device("cpu"), distributed.rank()
    values = torch.tensor([1.0, rank], requires_grad=True)
    total = distributed.sum_over_ranks(values)
    assert total.tolist() == [3.0, 3.0]
    assert not total.requires_grad
    assert values.tolist() == [1.0, rank]
    assert distributed.any_rank(rank == 2, device)
    assert not distributed.any_rank(False, device)
    assert distributed.is_main() == (rank == 0)


def test_what_the_main_rank_finds_is_everybodys() -> None:
    run_on_ranks(2, check_on_main)


def check_on_main() -> None:
    assert distributed.on_main(distributed.rank) == 0


def test_a_mistake_found_on_the_main_rank_is_raised_on_all() -> None:
    run_on_ranks(2, check_mistake_on_main)


def check_mistake_on_main() -> None:
    with pytest.raises(UserError, match="found on rank 0"):
        distributed.on_main(complain)


def complain() -> None:
    raise UserError(f"found on rank {distributed.rank()}")


def test_a_group_that_exists_is_left_alone() -> None:
    run_on_ranks(2, check_group_within_group)


def check_group_within_group() -> None:
    with distributed.group(torch.device("cpu")):
        assert distributed.world_size() == 2
    assert distributed.world_size() == 2
