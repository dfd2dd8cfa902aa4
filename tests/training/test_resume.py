import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.interrupted import CrashError, at_step, command, start, wait_for_lines
from support.ranks import run_on_ranks
from support.small_runs import STEPS, metrics_of, state_of, write_small_recipe

from embedkit import api, distributed
from embedkit.distributed.interrupt import StopRequest
from embedkit.errors import UserError
from embedkit.recipe import Recipe, load_recipe
from embedkit.training.trainer import Interrupted

CACHED = "objective.micro_batch_tokens=100"
ACCUMULATED = "optim.gradient_accumulation_steps=2"
ADAPTED = ("lora.rank=4", "lora.dropout=0.2", "objective.matryoshka_dims=[32, 8]")


def crash(recipe: Recipe, output: Path, *, after: int, resume: bool = False) -> None:
    def fail() -> None:
        raise CrashError

    with at_step(after, fail), pytest.raises(CrashError):
        api.finetune(recipe, output, resume=resume)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        pytest.param((CACHED, ACCUMULATED), marks=pytest.mark.slow),
        pytest.param((CACHED, *ADAPTED), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_resumed_run_equals_the_unbroken_one_bit_for_bit(
    world_size: int, overrides: tuple[str, ...], small_recipe: Path, tmp_path: Path
) -> None:
    run_on_ranks(world_size, check_resume, str(small_recipe), overrides, tmp_path)


def check_resume(recipe: str, overrides: tuple[str, ...], folder: Path) -> None:
    whole, broken = folder / "whole", folder / "broken"
    api.finetune(load_recipe(recipe, overrides), whole)
    crash(load_recipe(recipe, overrides), broken, after=7)
    if distributed.is_main():
        assert state_of(broken)["step"] == "step-000004"
        assert len(metrics_of(broken)) == 7
    distributed.barrier()
    api.finetune(load_recipe(recipe, [*overrides, "data.workers=2"]), broken, resume=True)
    if distributed.is_main():
        assert state_of(broken) == state_of(whole)
        assert metrics_of(broken) == metrics_of(whole)
        assert [line["step"] for line in metrics_of(whole)] == list(range(1, STEPS + 1))


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_as_the_unbroken_one(
    small_recipe: Path, tmp_path: Path
) -> None:
    recipe = load_recipe(str(small_recipe), ["steps=30", "checkpoints.every=3", "data.workers=1"])
    api.finetune(recipe, tmp_path / "whole")
    rng = random.Random(time.time_ns())
    moments = sorted(rng.sample(range(1, 24), 3))
    for lines in moments:
        killed = start(api.finetune, recipe, tmp_path / "killed", resume=is_run(tmp_path))
        wait_for_lines(tmp_path / "killed", lines)
        time.sleep(rng.uniform(0, 0.03))
        killed.kill()
        killed.join()
        assert killed.exitcode == -signal.SIGKILL, f"over before it was killed at {moments}"
    api.finetune(recipe, tmp_path / "killed", resume=True)
    assert state_of(tmp_path / "killed") == state_of(tmp_path / "whole"), moments
    assert metrics_of(tmp_path / "killed") == metrics_of(tmp_path / "whole"), moments


def is_run(folder: Path) -> bool:
    return (folder / "killed" / "run.json").is_file()


@pytest.mark.parametrize("file", ["model.safetensors", "state.json"])
@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over_with_a_remark(
    file: str, small_recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = load_recipe(str(small_recipe))
    crash(recipe, tmp_path / "run", after=10)
    cut(tmp_path / "run" / "checkpoints" / "step-000008" / file)
    capsys.readouterr()
    crash(recipe, tmp_path / "run", after=6, resume=True)
    said = " ".join(capsys.readouterr().out.split())
    assert "note:" in said
    assert "step-000008" in said
    assert "set aside as damaged-step-000008" in said
    assert "resuming after step 4" in said
    assert [line["step"] for line in metrics_of(tmp_path / "run")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_ranks_go_on_from_one_checkpoint_where_a_newer_one_is_damaged(
    small_recipe: Path, tmp_path: Path
) -> None:
    run_on_ranks(2, check_damage, small_recipe, tmp_path)


def check_damage(small_recipe: Path, folder: Path) -> None:
    recipe = load_recipe(str(small_recipe))
    crash(recipe, folder / "run", after=10)
    checkpoints = folder / "run" / "checkpoints"
    if distributed.is_main():
        cut(checkpoints / "step-000008" / "model.safetensors")
    distributed.barrier()
    api.finetune(recipe, folder / "run", resume=True)
    names = sorted(path.name for path in checkpoints.iterdir())
    assert names == ["damaged-step-000008", "step-000008", "step-000012"]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [(), ("seed=4",)])
def test_a_run_of_which_every_checkpoint_is_damaged_is_refused_and_stays_as_it_is(
    overrides: tuple[str, ...], small_recipe: Path, tmp_path: Path
) -> None:
    crash(load_recipe(str(small_recipe)), tmp_path / "run", after=10)
    for weights in (tmp_path / "run" / "checkpoints").glob("*/model.safetensors"):
        cut(weights)
    before = contents(tmp_path / "run")
    with pytest.raises(UserError, match=r"no checkpoint is whole \(step-000008: .*; step-000004: "):
        api.finetune(load_recipe(str(small_recipe), overrides), tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before


def test_another_recipe_is_refused_before_the_first_checkpoint_too(
    small_recipe: Path, tmp_path: Path
) -> None:
    crash(load_recipe(str(small_recipe)), tmp_path / "run", after=3)
    before = contents(tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()
    with pytest.raises(UserError, match=r"of its run\.json: seed: 3 -> 4; undo the change"):
        api.finetune(load_recipe(str(small_recipe), ["seed=4"]), tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before


@pytest.mark.slow
def test_without_a_checkpoint_a_run_starts_over(
    small_recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = load_recipe(str(small_recipe), ["steps=5"])
    crash(recipe, tmp_path / "run", after=3)
    api.finetune(recipe, tmp_path / "run", resume=True)
    assert "no checkpoint yet: starting from step 0" in " ".join(capsys.readouterr().out.split())
    assert [line["step"] for line in metrics_of(tmp_path / "run")] == [1, 2, 3, 4, 5]


def test_a_changed_recipe_is_refused_by_name_and_leaves_the_run_as_it_is(
    small_recipe: Path, tmp_path: Path
) -> None:
    crash(load_recipe(str(small_recipe)), tmp_path / "run", after=5)
    before = contents(tmp_path / "run")
    changed = load_recipe(str(small_recipe), ["optim.lr=2e-3", "seed=4"])
    with pytest.raises(UserError, match=r"seed: 3 -> 4; optim\.lr: 0\.001 -> 0\.002; undo"):
        api.finetune(changed, tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.slow
def test_changed_rows_are_refused_by_the_name_of_their_source(
    tiny_model: Path, tmp_path: Path
) -> None:
    recipe = load_recipe(str(write_small_recipe(tmp_path, tiny_model)))
    crash(recipe, tmp_path / "run", after=5)
    rows = tmp_path / "triplets.jsonl"
    rows.write_text(rows.read_text().replace("amber", "Amber", 1))
    with pytest.raises(
        UserError, match=r'checkpoint: sources\.triplets: "\w{12}" -> "\w{12}"; undo'
    ):
        api.finetune(recipe, tmp_path / "run", resume=True)


@pytest.mark.slow
def test_a_run_at_a_constant_rate_may_grow(small_recipe: Path, tmp_path: Path) -> None:
    constant = "optim.schedule=constant"
    api.finetune(load_recipe(str(small_recipe), [constant, "steps=9"]), tmp_path / "whole")
    api.finetune(load_recipe(str(small_recipe), [constant, "steps=5"]), tmp_path / "grown")
    longer = load_recipe(str(small_recipe), [constant, "steps=9", "checkpoints.keep=1"])
    api.finetune(longer, tmp_path / "grown", resume=True)
    assert state_of(tmp_path / "grown") == state_of(tmp_path / "whole")
    assert metrics_of(tmp_path / "grown") == metrics_of(tmp_path / "whole")


@pytest.mark.slow
def test_another_world_size_is_refused_unless_allowed(small_recipe: Path, tmp_path: Path) -> None:
    crash(load_recipe(str(small_recipe)), tmp_path / "run", after=5)
    run_on_ranks(2, check_world_size, small_recipe, tmp_path)


def check_world_size(recipe: Path, folder: Path) -> None:
    with pytest.raises(UserError, match=r"on 1 ranks, now there are 2; .*--allow-world-size"):
        api.finetune(load_recipe(str(recipe)), folder / "run", resume=True)
    api.finetune(
        load_recipe(str(recipe)), folder / "run", resume=True, allow_world_size_change=True
    )
    if distributed.is_main():
        assert state_of(folder / "run")["step"] == f"step-{STEPS:06d}"


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("whole_group", [False, True])
@pytest.mark.slow
def test_a_signal_ends_a_run_with_a_checkpoint_and_how_to_go_on(
    kind: signal.Signals, whole_group: bool, small_recipe: Path, tmp_path: Path
) -> None:
    run, screen = tmp_path / "run", tmp_path / "screen"
    words = ["finetune", "--recipe", str(small_recipe), "--output", str(run), "--overwrite"]
    # At a constant rate, a short run and the beginning of a long one are the same.
    settings = ["optim.schedule=constant", "data.workers=2", "checkpoints.every=1000"]
    words += [word for each in settings for word in ("--set", each)]
    process = start(command, [*words, "--set", "steps=2000"], screen)
    wait_for_lines(run, 5)
    assert process.pid is not None
    (os.killpg if whole_group else os.kill)(process.pid, kind)
    process.join(60)
    assert process.exitcode == 0, screen.read_text()
    steps = len(metrics_of(run))
    assert 5 <= steps < 2000
    last = " ".join(screen.read_text().split())
    assert last.endswith("--set steps=2000 --resume"), last
    assert f"stopped after step {steps}; continue with: embedkit finetune --recipe" in last
    assert "--overwrite" not in last
    recipe = load_recipe(str(small_recipe), [*settings, f"steps={steps}"])
    api.finetune(recipe, tmp_path / "short")
    assert state_of(run) == state_of(tmp_path / "short")


@pytest.mark.slow
def test_ranks_agree_on_the_step_at_which_they_stop(small_recipe: Path, tmp_path: Path) -> None:
    run_on_ranks(2, check_stop, small_recipe, tmp_path / "run")


def check_stop(recipe: Path, output: Path) -> None:
    def signal_one_rank() -> None:
        if distributed.rank() == 1:
            signal.raise_signal(signal.SIGTERM)

    with at_step(5, signal_one_rank), pytest.raises(Interrupted) as stopped:
        api.finetune(load_recipe(str(recipe)), output)
    assert stopped.value.step == 6
    if distributed.is_main():
        assert state_of(output)["step"] == "step-000006"


def test_a_second_signal_is_obeyed_at_once() -> None:
    process = start(be_told_twice, Impatient())
    process.join(10)
    assert process.exitcode == -signal.SIGTERM


def test_signals_that_come_together_are_one() -> None:
    # As under torchrun, which hands on what every rank has been sent already.
    process = start(be_told_twice, Patient())
    process.join(10)
    assert process.exitcode == 0


class Impatient(StopRequest):
    """To whom any two signals are seconds apart."""

    _ONE_REQUEST = -1.0


class Patient(StopRequest):
    """To whom any two signals come together, on however busy a machine."""

    _ONE_REQUEST = 3600.0


def be_told_twice(request: StopRequest) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with request as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.asked
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.slow
def test_the_script_that_kills_and_resumes_finds_equal_runs(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "kill_and_resume.py"
    command = [sys.executable, str(script), "--kills", "1", "--set", "steps=20"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed after step" in done.stdout
    assert done.stdout.count("equal bit for bit") == 2
    assert not list(tmp_path.iterdir())
