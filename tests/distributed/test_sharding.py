"""Weights split over ranks (FSDP2): the same steps, and checkpoints that any number can read."""

from pathlib import Path

import pytest
import torch
from support.ranks import run_on_ranks
from torch import Tensor, nn

from embedkit import distributed
from embedkit.distributed import sharding
from embedkit.recipe import Optim
from embedkit.training import checkpoint
from embedkit.training.optim import build_optimizer

ROWS, STEPS = 8, 3


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(6, 6).double() for _ in range(3)])

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers:
            inputs = layer(inputs).tanh()
        return inputs


def built(shard: bool) -> tuple[Stack, torch.optim.Optimizer]:
    model = Stack()
    if shard:
        sharding.shard(model, model.layers)
    return model, build_optimizer(model, Optim(lr=0.1))


def train(model: Stack, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    """Norms of the gradients; each rank takes its share of the rows, in two micro-batches."""
    norms = []
    for step in steps:
        rows = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(step)).double()
        own = rows[distributed.share_of(ROWS, distributed.rank(), distributed.world_size())]
        optimizer.zero_grad()
        for number, part in enumerate(own.chunk(2)):
            sharding.reduce_in_backward(model, number == 1)
            (model(part).square().sum() * distributed.world_size() / ROWS).backward()
        distributed.average_gradients(model.parameters())
        norm = sharding.whole(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        norms.append(norm.item())
        optimizer.step()
    return norms


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.slow
def test_sharded_steps_are_the_steps_of_one_process(world_size: int, tmp_path: Path) -> None:
    model, optimizer = built(shard=False)
    norms = train(model, optimizer, range(STEPS))
    run_on_ranks(world_size, check_steps, norms, checkpoint.captured(model, optimizer).weights)


def check_steps(norms: list[float], weights: dict[str, Tensor]) -> None:
    model, optimizer = built(shard=True)
    assert sharding.is_sharded(model)
    assert train(model, optimizer, range(STEPS)) == pytest.approx(norms)
    state = checkpoint.captured(model, optimizer)
    if distributed.is_main():
        torch.testing.assert_close(dict(state.weights), weights)
    assert state.weights.keys() == (weights.keys() if distributed.is_main() else set())
    whole = checkpoint.whole_weights(model)
    if distributed.is_main():
        torch.testing.assert_close(whole, weights)


@pytest.mark.slow
@pytest.mark.parametrize(("saved_on", "shard"), [(2, True), (4, True), (2, False)])
def test_a_checkpoint_of_any_ranks_goes_on_anywhere(
    saved_on: int, shard: bool, tmp_path: Path
) -> None:
    model, optimizer = built(shard=False)
    train(model, optimizer, range(2 * STEPS))
    expected = checkpoint.captured(model, optimizer).weights
    run_on_ranks(saved_on, save, shard, tmp_path)
    for world_size, sharded in ((1, False), (1, True), (4, True), (2, False)):
        run_on_ranks(world_size, check_going_on, sharded, tmp_path, expected)


def save(shard: bool, root: Path) -> None:
    model, optimizer = built(shard)
    train(model, optimizer, range(STEPS))
    state = checkpoint.captured(model, optimizer)
    if distributed.is_main():
        checkpoint.save(root, STEPS, state, {}, keep=1)


def check_going_on(shard: bool, root: Path, expected: dict[str, Tensor]) -> None:
    model, optimizer = built(shard)
    found, _ = checkpoint.newest(root)
    assert found is not None
    checkpoint.restore(found, model, optimizer)
    train(model, optimizer, range(STEPS, 2 * STEPS))
    whole = checkpoint.whole_weights(model)
    if distributed.is_main():
        torch.testing.assert_close(whole, expected)
