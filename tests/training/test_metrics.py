import json
from pathlib import Path
from typing import Any

import pytest
import torch

from embedkit.errors import UserError
from embedkit.training.metrics import Metrics, check_trackers, open_trackers, truncate_lines


class Listener:
    """A tracker that remembers what it was told."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, dict[str, float]]] = []
        self.finished = False

    def log(self, values: dict[str, float], /, *, step: int) -> None:
        self.heard.append((step, values))

    def finish(self) -> None:
        self.finished = True


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_steps(path: Path, steps: int) -> None:
    with Metrics(path, []) as metrics:
        for step in range(1, steps + 1):
            metrics.add(step, "pairs", {"loss": 1.0 / step})


def test_numbers_wait_until_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with Metrics(path, []) as metrics:
        metrics.add(1, "pairs", {"loss": torch.tensor(0.5), "lr": 0.1})
        assert not path.exists()
        expected = [{"step": 1, "source": "pairs", "loss": 0.5, "lr": 0.1}]
        assert metrics.write() == lines(path) == expected
        metrics.add(2, "pairs", {"loss": 0.25})
    assert [line["step"] for line in lines(path)] == [1, 2]


def test_numbers_are_written_exactly(tmp_path: Path) -> None:
    values = torch.rand(100)
    with Metrics(tmp_path / "metrics.jsonl", []) as metrics:
        for step, value in enumerate(values):
            metrics.add(step, "pairs", {"loss": value})
    read = torch.tensor([line["loss"] for line in lines(tmp_path / "metrics.jsonl")])
    assert torch.equal(read, values)


def test_trackers_hear_every_step_and_each_source_by_name(tmp_path: Path) -> None:
    listener = Listener()
    with Metrics(tmp_path / "metrics.jsonl", [listener]) as metrics:
        metrics.add(1, "pairs", {"loss": 0.5, "accuracy": 0.25, "lr": 0.1})
        metrics.add(2, "triplets", {"loss": torch.tensor(0.75)})
        assert not listener.finished
    assert listener.heard == [
        (1, {"loss": 0.5, "accuracy": 0.25, "lr": 0.1, "pairs/loss": 0.5, "pairs/accuracy": 0.25}),
        (2, {"loss": 0.75, "triplets/loss": 0.75}),
    ]
    assert listener.finished


@pytest.mark.parametrize(("steps", "left"), [(0, []), (3, [1, 2, 3]), (9, [1, 2, 3, 4, 5])])
def test_steps_that_are_taken_again_are_cut(steps: int, left: list[int], tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_steps(path, 5)
    truncate_lines(path, steps)
    assert [line["step"] for line in lines(path)] == left


@pytest.mark.parametrize("end", ['{"step": 6, "lo', '{"step": 3}', "\x00\x00\x00"])
def test_half_a_line_is_cut(end: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_steps(path, 5)
    path.write_text(path.read_text() + end)
    truncate_lines(path, 9)
    assert [line["step"] for line in lines(path)] == [1, 2, 3, 4, 5]


def test_there_may_be_nothing_to_cut(tmp_path: Path) -> None:
    truncate_lines(tmp_path / "metrics.jsonl", 3)
    assert not list(tmp_path.iterdir())


def test_a_tracker_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "wandb" else name)
    check_trackers(["tensorboard", "trackio"])
    with pytest.raises(UserError, match="wandb is not installed: pip install wandb, or"):
        check_trackers(["tensorboard", "wandb"])


def test_only_what_is_asked_for_is_opened(tmp_path: Path) -> None:
    assert open_trackers([], tmp_path, {}) == []
