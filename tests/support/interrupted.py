"""Ways for a run to end before its time."""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from embedkit_cli.app import main

from embedkit.training.trainer import Trainer


class CrashError(Exception):
    """Stands for whatever ends a run without warning."""


@contextmanager
def at_step(step: int, event: Callable[[], None]) -> Iterator[None]:
    """Let ``event`` happen on every rank once ``step`` is recorded, before it can be saved."""
    record = Trainer._record

    def record_first(self: Any, done: int, *args: Any, **options: Any) -> None:
        record(self, done, *args, **options)
        if done == step:
            event()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_record", record_first)
        yield


def start(work: Callable[..., object], *args: object, **options: object) -> multiprocessing.Process:
    """Run ``work`` in a forked process, which needs no new imports."""
    process = multiprocessing.get_context("fork").Process(target=work, args=args, kwargs=options)
    process.start()
    return process  # type: ignore[return-value]


def command(words: list[str], screen: Path) -> None:
    """What ``embedkit WORDS`` does, in a process group of its own."""
    os.setsid()
    with screen.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.argv = ["embedkit", *words]
    main()


def wait_for_lines(run: Path, count: int) -> None:
    metrics = run / "metrics.jsonl"
    give_up = time.monotonic() + 60
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < count:
        assert time.monotonic() < give_up, f"{metrics} never had {count} lines"
        time.sleep(0.002)
