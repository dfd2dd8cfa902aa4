"""Workers of a run under ``spawn``, which is how macOS and Windows start processes."""

import os
import signal
import subprocess
import sys
import time
from multiprocessing import get_start_method, set_start_method
from pathlib import Path

import pytest
from support.interrupted import wait_for_lines
from support.small_runs import write_small_recipe
from torch.utils.data import Dataset

from embedkit.data.loading import stream, without_script
from embedkit.errors import UserError

SCRIPT = """
import multiprocessing
import embedkit

multiprocessing.set_start_method("spawn")
print("script begins", flush=True)
embedkit.finetune(embedkit.load_recipe({recipe!r}, ["data.workers=1", "steps=100000"]), {run!r})
"""


class OfScript(Dataset[int]):
    """Data set of a class that only the script has."""

    def __getitem__(self, number: int) -> int:
        return number


@pytest.mark.slow
def test_a_script_without_a_guard_runs_once_and_ends_on_sigterm(
    tiny_model: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    script = tmp_path / "script.py"
    recipe = str(write_small_recipe(tmp_path, tiny_model))
    script.write_text(SCRIPT.format(recipe=recipe, run=str(run)))
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([sys.executable, script], stdout=log, stderr=subprocess.STDOUT)
        try:
            give_up = time.monotonic() + 120
            while not run.exists() and process.poll() is None and time.monotonic() < give_up:
                time.sleep(0.1)
            wait_for_lines(run, 3)
            os.kill(process.pid, signal.SIGTERM)
            process.wait(60)
        finally:
            process.kill()
    told = (tmp_path / "log").read_text()
    assert told.count("script begins") == 1
    assert "Interrupted: stopped after step" in told
    assert list((run / "checkpoints").glob("step-*"))


def test_data_of_a_class_of_the_script_are_refused_where_workers_do_not_run_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "OfScript", OfScript, raising=False)
    monkeypatch.setattr(OfScript, "__module__", "__main__")
    before = get_start_method()
    set_start_method("spawn", force=True)
    try:
        with pytest.raises(UserError, match=r"data\.workers = 1: .* set data\.workers=0"):
            next(stream(OfScript(), range(2), 1))
    finally:
        set_start_method(before, force=True)


def test_the_script_is_back_afterwards() -> None:
    script = sys.modules["__main__"]
    with without_script():
        assert sys.modules["__main__"] is not script
    assert sys.modules["__main__"] is script
