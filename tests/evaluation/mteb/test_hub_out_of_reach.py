"""Tasks of mteb while the hub accepts connections and never answers."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import datasets
import pytest
from huggingface_hub import constants
from support.counting_encoder import Counting

from embedkit.evaluation.mteb.scoring import evaluate
from embedkit.evaluation.mteb.task_selection import select_tasks
from embedkit.storage import offline


@pytest.fixture
def silent_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.delenv("EMBEDKIT_HUB", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(offline, "_TIMEOUT", 0.5)
    offline.settle_network.cache_clear()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        yield server
    # Else the next test that asks again would find these settings, not its own.
    offline.ask_again()


def connections(server: socket.socket) -> int:
    """How many clients have connected and were never accepted."""
    count = 0
    while True:
        try:
            server.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


def test_a_hub_that_does_not_answer_is_asked_once_for_all_tasks(
    silent_hub: socket.socket, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tasks = select_tasks(tasks=["STS12", "STS13", "ArguAna"])
    capfd.readouterr()
    start = time.monotonic()
    summary = evaluate(Counting(), tasks, tmp_path / "out")
    assert time.monotonic() - start < 20
    assert connections(silent_hub) == 1
    assert summary.failed.keys() == {"STS12", "STS13", "ArguAna"}
    assert all("; --data-dir reads a copy" in reason for reason in summary.failed.values())
    assert len(capfd.readouterr().err.splitlines()) == 3
