"""What a log shows while a run goes on: read from the pipe of a process that is still running."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.small_runs import STEPS, write_small_pretraining
from support.task_folders import write_task
from support.tiny_bert import MINILM

from embedkit import api
from embedkit.recipe import load_recipe


@contextmanager
def piped(*words: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a command whose whole output goes into a pipe; it is over when the context ends."""
    command = [str(Path(sys.executable).with_name("embedkit")), *words]
    # A buffer of Python's would hold lines back.
    environment = {name: each for name, each in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_of(process: "subprocess.Popen[str]", start: str) -> Iterator[str]:
    """The lines that begin with ``start``, as they come."""
    assert process.stdout is not None
    return (line for line in process.stdout if line.startswith(start))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["finetune", "pretrain"])
def test_a_log_grows_while_a_run_goes_on(command: str, small_recipe: Path, tmp_path: Path) -> None:
    recipe = small_recipe
    if command == "pretrain":
        recipe = write_small_pretraining(tmp_path / "mlm", MINILM)
    words = [command, "--recipe", str(recipe), "--output", str(tmp_path / "run")]
    # So many steps that the run is still going on when its first lines are read.
    for setting in ("steps=5000", "logging.every=2", "checkpoints.every=5000"):
        words += ["--set", setting]
    with piped(*words) as process:
        lines = lines_of(process, "step ")
        for number in (2, 4, 6):
            assert next(lines).startswith(f"step {number}/5000  loss ")
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert len(list(lines_of(process, "stopped after step "))) == 1
        assert process.wait() == 0


@pytest.mark.slow
def test_a_log_names_each_task_as_it_is_scored(tiny_model: Path, tmp_path: Path) -> None:
    words = ["eval-mteb", "--model", str(tiny_model), "--no-cache"]
    write_task(tmp_path / "Finding", "retrieval")
    # The second task is far from scored when the line of the first is read.
    write_task(tmp_path / "Longer", "retrieval")
    texts = [{"_id": f"e{n}", "text": f"{n} " + "cat " * 60} for n in range(20_000)]
    with (tmp_path / "Longer" / "corpus.jsonl").open("a") as corpus:
        corpus.writelines(json.dumps(text) + "\n" for text in texts)
    words += ["--task-dir", str(tmp_path), "--output", str(tmp_path / "out")]
    with piped(*words) as process:
        assert next(lines_of(process, "Finding: ndcg_at_10 "))
        assert process.poll() is None


@pytest.mark.slow
def test_a_line_of_several_steps_names_a_source_that_is_the_only_one(
    small_recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rarely = (f"logging.every={STEPS}", f"checkpoints.every={STEPS}")
    api.finetune(load_recipe(str(small_recipe), rarely), tmp_path / "mixed")
    one = f"data.mix=[{{manifest='{small_recipe.with_name('pairs.toml')}'}}]"
    api.finetune(load_recipe(str(small_recipe), (*rarely, one)), tmp_path / "pairs")
    out = capsys.readouterr().out
    mixed, pairs = [line.split("  ") for line in out.splitlines() if line.startswith("step ")]
    assert (len(mixed), len(pairs)) == (5, 6)
    assert pairs[3] == "pairs"
