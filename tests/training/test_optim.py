import math

import pytest
import torch
from torch import nn

from embedkit.recipe import Optim
from embedkit.training.optim import build_optimizer, lr_at, set_lr


def rates(steps: int, **options: object) -> list[float]:
    optim = Optim.model_validate({"lr": 1.0, **options})
    return [lr_at(step, steps, optim) for step in range(steps + 1)]


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_warm_up_climbs_in_a_line_and_starts_above_zero(schedule: str) -> None:
    climb = rates(10, warmup_steps=4, schedule=schedule)[:5]
    assert climb == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_a_constant_rate_stays() -> None:
    assert rates(5, schedule="constant") == [1.0] * 6


def test_a_linear_rate_falls_in_a_line() -> None:
    expected = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5]
    assert rates(5, schedule="linear", min_lr_ratio=0.5) == pytest.approx(expected)
    assert rates(5, schedule="linear")[-1] == 0


def test_a_cosine_rate_falls_along_half_a_wave() -> None:
    expected = [0.2 + 0.8 * (1 + math.cos(math.pi * step / 8)) / 2 for step in range(9)]
    assert rates(8, schedule="cosine", min_lr_ratio=0.2) == pytest.approx(expected)


def test_the_fall_begins_where_warm_up_ends() -> None:
    assert rates(12, warmup_steps=2, schedule="linear")[2:] == pytest.approx(rates(10))


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_run_shorter_than_its_warm_up_only_climbs(schedule: str) -> None:
    assert rates(3, warmup_steps=9, schedule=schedule) == pytest.approx([0.1, 0.2, 0.3, 0.4])


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 2)
        self.linear = nn.Linear(2, 2)
        self.norm = nn.LayerNorm(2)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)


def test_matrices_decay_and_norms_and_biases_do_not() -> None:
    model = Layers()
    optimizer = build_optimizer(model, Optim(lr=0.1, weight_decay=0.5))
    decay = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert {name: decay.get(id(parameter)) for name, parameter in model.named_parameters()} == {
        "embedding.weight": 0.5,
        "linear.weight": 0.5,
        "linear.bias": 0.0,
        "norm.weight": 0.0,
        "norm.bias": 0.0,
        "frozen.weight": None,
        "frozen.bias": None,
    }


@pytest.mark.parametrize(
    ("name", "kind"), [("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam)]
)
def test_the_recipe_names_the_optimizer(name: str, kind: type[torch.optim.Optimizer]) -> None:
    chosen = Optim.model_validate({"lr": 0.1, "name": name, "betas": [0.8, 0.9], "eps": 1e-6})
    optimizer = build_optimizer(Layers(), chosen)
    assert type(optimizer) is kind
    assert (optimizer.defaults["betas"], optimizer.defaults["eps"]) == ((0.8, 0.9), 1e-6)


@pytest.mark.parametrize(("name", "expected"), [("adamw", 4 - 0.1 * 0.5 * 4), ("adam", 4 - 0.1)])
def test_adamw_decays_the_weight_and_adam_the_gradient(name: str, expected: float) -> None:
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 4.0)
    optim = Optim.model_validate({"lr": 0.1, "name": name, "weight_decay": 0.5})
    model.weight.grad = torch.zeros_like(model.weight)
    build_optimizer(model, optim).step()
    assert model.weight.item() == pytest.approx(expected)


def test_a_rate_is_set_for_every_group() -> None:
    optimizer = build_optimizer(Layers(), Optim(lr=0.1))
    set_lr(optimizer, 0.03)
    assert [group["lr"] for group in optimizer.param_groups] == [0.03, 0.03]
