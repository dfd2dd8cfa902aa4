import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from support.ranks import run_on_ranks
from support.small_runs import metrics_of
from torch import Tensor, nn

from embedkit import distributed, rng
from embedkit.config import validated
from embedkit.errors import UserError
from embedkit.recipe import Optim, Recipe
from embedkit.training.interfaces import Evaluator, Stop
from embedkit.training.metrics import Metrics
from embedkit.training.optim import build_optimizer, lr_at
from embedkit.training.trainer import Interrupted, Trainer, TrainingJob

POINTS = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5], [-2.0, 1.0], [4.0, 0.0], [1.0, 1.0]])
TARGETS = torch.tensor([1.0, -1.0, 2.0, 0.0, 3.0, -2.0])


@dataclass(frozen=True)
class Rows:
    """Rows of ``POINTS``; stands for a batch."""

    rows: list[int]
    source: str = "points"

    def to(self, _device: torch.device) -> Self:
        return self


class LeastSquares:
    """An objective small enough to check by hand. Remembers the keys it was given."""

    def __init__(self) -> None:
        self.keys: list[int] = []

    def backward(
        self, model: nn.Module, batch: Rows, *, key: int, scale: float
    ) -> dict[str, Tensor]:
        self.keys.append(key)
        loss = (model(POINTS[batch.rows]).squeeze(1) - TARGETS[batch.rows]).square().mean()
        (loss * scale).backward()
        return {"loss": loss.detach(), "tokens": torch.tensor(float(len(batch.rows)))}


class Noting:
    """An evaluator that notes after which steps it is called."""

    def __init__(
        self,
        long: Sequence[int] = (),
        during: Callable[[], None] = lambda: None,
        *,
        last: int | None = None,
        best: int | None = None,
    ) -> None:
        self.called: list[int] = []
        self._long, self._during, self._last, self._best = long, during, last, best

    def before(self, start: int, stop: Stop) -> None: ...

    def takes_long(self, done: int) -> bool:
        return done in self._long

    def after_step(self, done: int, _stop: Stop) -> bool:
        self.called.append(done)
        self._during()
        return done == self._last

    def best_step(self) -> int | None:
        return self._best


def linear() -> nn.Linear:
    model = nn.Linear(2, 1)
    nn.init.constant_(model.weight, 0.5)
    nn.init.constant_(model.bias, 0.1)
    return model


def train(
    folder: Path,
    batches: list[list[int]],
    *,
    start: int = 0,
    evaluator: Evaluator | None = None,
    stop: Stop = lambda: False,
    **changes: Any,
) -> tuple[nn.Linear, LeastSquares]:
    """Train on the given rows, batch by batch."""
    accumulation = changes.pop("gradient_accumulation_steps", 1)
    checkpoints = changes.pop("checkpoints", {"every": 1000})
    logging = changes.pop("logging", {"every": 1})
    optim = {
        "lr": 0.1,
        "schedule": "constant",
        "max_grad_norm": 0.0,
        "gradient_accumulation_steps": accumulation,
        **changes,
    }
    tables = {
        "seed": 3,
        "steps": len(batches) // accumulation,
        "model": "none",
        "data": {"batch_size": 1, "mix": [{"manifest": "points"}]},
        "optim": optim,
        "logging": logging,
        "checkpoints": checkpoints,
    }
    folder.mkdir(exist_ok=True)
    model, objective = linear(), LeastSquares()

    def stream(numbers: range) -> Iterator[Rows]:
        return (Rows(batches[number]) for number in numbers)

    with Metrics(folder / "metrics.jsonl", []) as metrics:
        job = TrainingJob(
            recipe=validated(Recipe, tables, "recipe"),
            facts={},
            model=model,
            objective=objective,
            batches=stream,
            evaluator=evaluator or Noting(),
            finish=lambda _stop: True,
        )
        Trainer(job, folder, {}, metrics).fit(start, stop)
    return model, objective


def parameters(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters())


def rates(steps: int, **optim: Any) -> list[float]:
    return [lr_at(step, steps, Optim(lr=1.0, **optim)) for step in range(steps)]


def test_a_constant_rate_is_warmed_up_and_stays() -> None:
    expected = [0.25, 0.5, 0.75, 1, 1, 1]
    assert rates(6, schedule="constant", warmup_steps=3) == pytest.approx(expected)


def test_a_linear_rate_falls_to_the_share_that_is_left() -> None:
    assert rates(4, schedule="linear") == pytest.approx([1, 0.75, 0.5, 0.25])
    expected = [0.5, 1, 0.875, 0.75, 0.625]
    assert rates(5, schedule="linear", warmup_steps=1, min_lr_ratio=0.5) == pytest.approx(expected)


def test_a_cosine_rate_is_half_way_down_in_the_middle() -> None:
    expected = [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]
    assert rates(4, schedule="cosine") == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup_steps", [0, 1, 5, 50])
def test_a_rate_is_never_zero_and_never_above_its_peak(schedule: str, warmup_steps: int) -> None:
    assert all(0 < rate <= 1 for rate in rates(20, schedule=schedule, warmup_steps=warmup_steps))


def test_only_matrices_decay() -> None:
    model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 3), nn.LayerNorm(3))
    model[1].weight.requires_grad_(False)
    decaying, others = build_optimizer(model, Optim(lr=1.0, weight_decay=0.3)).param_groups
    assert [tuple(each.shape) for each in decaying["params"]] == [(4, 3)]
    assert [tuple(each.shape) for each in others["params"]] == [(3,), (3,), (3,)]
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.3, 0.0)


@pytest.mark.parametrize("name", ["adamw", "adam"])
def test_a_run_is_what_torch_does_by_hand(name: str, tmp_path: Path) -> None:
    batches = [[0, 1], [2, 3], [4, 5], [0, 5]]
    model, _ = train(tmp_path, batches, name=name, schedule="linear", warmup_steps=1)
    expected = linear()
    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[name]
    decaying = {"params": [expected.weight], "weight_decay": 0.01}
    optimizer = kind([decaying, {"params": [expected.bias], "weight_decay": 0.0}])
    losses = []
    for rows, lr in zip(batches, [0.05, 0.1, 0.1 * 2 / 3, 0.1 / 3], strict=True):
        loss = (expected(POINTS[rows]).squeeze(1) - TARGETS[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        losses.append(loss.item())
    torch.testing.assert_close(parameters(model), parameters(expected))
    assert [line["loss"] for line in metrics_of(tmp_path)] == pytest.approx(losses)


def test_accumulation_does_not_change_what_the_loss_means(tmp_path: Path) -> None:
    whole, _ = train(tmp_path / "whole", [[0, 1, 2, 3, 4, 5]] * 3)
    parts, _ = train(
        tmp_path / "parts", [[0, 1], [2, 3], [4, 5]] * 3, gradient_accumulation_steps=3
    )
    torch.testing.assert_close(parameters(parts), parameters(whole))
    for one, other in zip(
        metrics_of(tmp_path / "whole"), metrics_of(tmp_path / "parts"), strict=True
    ):
        assert other == pytest.approx(one)
        assert one["tokens"] == 6


def test_a_gradient_is_clipped_to_its_norm_and_its_norm_told(tmp_path: Path) -> None:
    # With a large eps an update of Adam grows with the gradient.
    free, _ = train(tmp_path / "free", [[0, 1]], eps=1e3, weight_decay=0.0)
    clipped, _ = train(tmp_path / "clipped", [[0, 1]], eps=1e3, weight_decay=0.0, max_grad_norm=0.5)
    (one,), (other,) = metrics_of(tmp_path / "free"), metrics_of(tmp_path / "clipped")
    assert one["grad_norm"] == other["grad_norm"] > 1
    start = parameters(linear())
    moved = (parameters(each) - start for each in (free, clipped))
    expected, actual = (each.norm().item() for each in moved)
    assert actual / expected == pytest.approx(0.5 / one["grad_norm"], rel=0.02)


def test_each_batch_of_each_step_draws_from_its_own_key(tmp_path: Path) -> None:
    _, objective = train(tmp_path, [[0], [1], [2], [3]], gradient_accumulation_steps=2)
    expected = [
        rng.fold_in(3, "step", step, batch, 0) for step, batch in ((0, 0), (0, 1), (1, 0), (1, 1))
    ]
    assert objective.keys == expected
    assert len(set(expected)) == 4


def test_ranks_take_the_mean_of_their_gradients(tmp_path: Path) -> None:
    whole, _ = train(tmp_path / "whole", [[0, 1, 2, 3]] * 3)
    run_on_ranks(2, check_ranks, tmp_path / "ranks", parameters(whole).detach())


def check_ranks(folder: Path, expected: Tensor) -> None:
    rank = distributed.rank()
    model, objective = train(folder, [[2 * rank, 2 * rank + 1]] * 3)
    torch.testing.assert_close(parameters(model).detach(), expected)
    assert objective.keys == [rng.fold_in(3, "step", step, 0, rank) for step in range(3)]
    if rank == 0:
        assert len(metrics_of(folder)) == 3


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_ends_the_run_and_is_in_no_checkpoint(
    value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "TARGETS", torch.tensor([1.0, 1, 1, 1, 1, value]))
    batches = [[0], [1], [2], [3], [5], [0]]
    with pytest.raises(
        UserError, match=r"step 5 \(points\): loss (nan|inf), gradient norm"
    ) as told:
        train(tmp_path, batches, checkpoints={"every": 2})
    assert "\n" not in str(told.value)
    assert "lower optim.lr" in str(told.value)
    assert sorted(each.name for each in (tmp_path / "checkpoints").iterdir()) == [
        "step-000002",
        "step-000004",
    ]


def test_the_last_step_always_makes_a_checkpoint(tmp_path: Path) -> None:
    train(tmp_path, [[0]] * 5, checkpoints={"every": 2, "keep": 9})
    steps = sorted(each.name for each in (tmp_path / "checkpoints").iterdir())
    assert steps == ["step-000002", "step-000004", "step-000005"]


@pytest.mark.parametrize(("start", "expected"), [(0, [1, 2, 3]), (2, [2, 3]), (4, [])])
def test_what_is_due_between_steps_is_due_where_a_run_was_cut_off_too(
    start: int, expected: list[int], tmp_path: Path
) -> None:
    noting = Noting()
    train(tmp_path, [[0]] * 4, start=start, evaluator=noting)
    assert noting.called == expected


def test_a_long_evaluation_comes_after_a_checkpoint_and_can_be_stopped(tmp_path: Path) -> None:
    def checkpoints() -> list[str]:
        return sorted(each.name for each in tmp_path.glob("checkpoints/*"))

    noting = Noting(long=[3], during=lambda: seen.append(checkpoints()))
    seen: list[list[str]] = []
    with pytest.raises(Interrupted) as stopped:
        # Nothing is asked of it until the evaluation has begun.
        train(tmp_path, [[0]] * 5, evaluator=noting, stop=lambda: len(seen) == 3)
    assert stopped.value.step == 3
    assert seen == [[], [], ["step-000003"]]
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 3


@pytest.mark.parametrize("start", [0, 2, 3])
def test_an_evaluator_ends_a_run_after_its_checkpoint(start: int, tmp_path: Path) -> None:
    noting = Noting(long=[3], last=3)
    train(tmp_path, [[0]] * 5, start=start, evaluator=noting)
    assert noting.called[-1] == 3
    saved = [each.name for each in tmp_path.glob("checkpoints/*")]
    # A run that is resumed where it ended takes no further step.
    assert saved == (["step-000003"] if start < 3 else [])
    assert (tmp_path / "metrics.jsonl").exists() == (start < 3)


def test_the_best_step_s_checkpoint_stays_beside_the_newest(tmp_path: Path) -> None:
    noting = Noting(best=2)
    train(tmp_path, [[0]] * 5, evaluator=noting, checkpoints={"every": 1, "keep": 1})
    steps = sorted(each.name for each in (tmp_path / "checkpoints").iterdir())
    assert steps == ["step-000002", "step-000005"]


def test_a_short_evaluation_makes_no_checkpoint(tmp_path: Path) -> None:
    noting = Noting()
    train(tmp_path, [[0]] * 5, evaluator=noting)
    assert noting.called == [1, 2, 3, 4]
    assert [each.name for each in (tmp_path / "checkpoints").iterdir()] == ["step-000005"]


@pytest.mark.parametrize(("start", "expected"), [(0, ["2", "4", "5"]), (3, ["4", "5"])])
def test_a_log_has_a_line_as_often_as_numbers_are_written(
    start: int, expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, [[0]] * 5, start=start, logging={"every": 2})
    pattern = r"step (\d)/5  loss \d\.\d{3}  lr 1\.0e-01  points  [\d,]+ tokens/s  0:00:00 left"
    found = [re.fullmatch(pattern, line) for line in capsys.readouterr().out.splitlines()]
    assert [match and match[1] for match in found] == expected


def test_ranks_share_one_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    run_on_ranks(2, train, tmp_path / "run", [[0], [1], [2]])
    steps = [line.split("  ")[0] for line in capfd.readouterr().out.splitlines()]
    assert steps == ["step 1/3", "step 2/3", "step 3/3"]
