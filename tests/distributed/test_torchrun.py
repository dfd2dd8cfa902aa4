"""Two ranks on one CPU: forked for most, and by the real torchrun once."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from support.ranks import run_on_ranks
from support.small_runs import STEPS, metrics_of, write_small_recipe
from support.task_folders import write_task
from support.tiny_bert import write_tiny_model

from embedkit import api
from embedkit.data.pairs.contrastive_batches import Batches
from embedkit.errors import UserError
from embedkit.recipe import load_recipe


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs and triplets for a model without dropout, whose numbers do not depend on ranks."""
    folder = tmp_path_factory.mktemp("torchrun")
    return write_small_recipe(folder, write_tiny_model(folder / "model", dropout=0.0))


@pytest.fixture(scope="module")
def alone(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The metrics of the run on one rank."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    api.finetune(load_recipe(str(recipe)), folder)
    return metrics_of(folder)


def check_equal(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert {line["source"] for line in expected} == {"pairs", "triplets"}
    assert [line["source"] for line in found] == [line["source"] for line in expected]
    for one, other in zip(found, expected, strict=True):
        for key in ("loss", "accuracy", "lr", "tokens"):
            assert one[key] == pytest.approx(other[key], rel=1e-5, abs=1e-5), (one, other)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)


@pytest.mark.parametrize(
    "overrides", [(), pytest.param(("objective.micro_batch_tokens=100",), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_ranks_give_the_losses_of_one(
    world_size: int,
    overrides: tuple[str, ...],
    recipe: Path,
    alone: list[dict[str, Any]],
    tmp_path: Path,
) -> None:
    run_on_ranks(world_size, finetune, recipe, overrides, tmp_path / "run")
    check_equal(metrics_of(tmp_path / "run"), alone)


def finetune(recipe: Path, overrides: tuple[str, ...], output: Path) -> None:
    api.finetune(load_recipe(str(recipe), overrides), output)


@pytest.mark.slow
def test_every_step_reads_one_source_on_all_ranks(recipe: Path, tmp_path: Path) -> None:
    run_on_ranks(2, check_sources, recipe, tmp_path / "run")


def check_sources(recipe: Path, output: Path) -> None:
    seen: list[tuple[str, int]] = []
    getitem = Batches.__getitem__

    def getitem_noted(self: Batches, number: int) -> Any:
        batch = getitem(self, number)
        seen.append((batch.source, len(batch.documents)))
        return batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batches, "__getitem__", getitem_noted)
        finetune(recipe, (), output)
    shares: list[Any] = [None, None]
    dist.all_gather_object(shares, seen)
    assert shares[0] == shares[1]
    # Four positives a rank, and three hard negatives for each where there are any.
    assert set(seen) == {("pairs", 4), ("triplets", 16)}
    assert len(seen) == STEPS


def torchrun(*words: str, module: bool = True) -> "subprocess.CompletedProcess[str]":
    launcher = Path(sys.executable).with_name("torchrun")
    program = ["-m", "embedkit_cli"] if module else []
    command = [str(launcher), "--nproc-per-node", "2", *program, *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_torchrun_gives_the_losses_of_one_rank(
    recipe: Path, alone: list[dict[str, Any]], tmp_path: Path
) -> None:
    done = torchrun("finetune", "--recipe", str(recipe), "--output", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    check_equal(metrics_of(tmp_path / "run"), alone)
    # Rank 0 alone prints.
    assert done.stdout.count("model: ") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("native_bf16")
def test_a_script_under_torchrun_may_train_and_evaluate(recipe: Path, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "Finding", "retrieval")
    script = tmp_path / "script.py"
    script.write_text(
        "import embedkit\n"
        f"embedkit.finetune({str(recipe)!r}, {str(tmp_path / 'run')!r})\n"
        f"embedkit.evaluate({str(tmp_path / 'run' / 'model')!r},\n"
        f"    [{str(tmp_path / 'tasks' / 'Finding')!r}], {str(tmp_path / 'scores')!r})\n"
    )
    done = torchrun(str(script), module=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "scores" / "summary.json").is_file()


def test_a_loss_that_is_not_finite_ends_every_rank(recipe: Path, tmp_path: Path) -> None:
    run_on_ranks(2, diverge, recipe, tmp_path / "run")


def diverge(recipe: Path, output: Path) -> None:
    with pytest.raises(UserError, match=r"loss nan, .* start anew with a lower optim\.lr"):
        finetune(recipe, ("optim.lr=1e30", "optim.warmup_steps=0"), output)


@pytest.mark.slow
def test_under_torchrun_a_mistake_is_told_once(tmp_path: Path) -> None:
    done = torchrun("finetune", "--recipe", "startr", "--output", str(tmp_path / "run"))
    assert done.returncode != 0
    assert done.stderr.count("startr: not a name under recipes/") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_under_torchrun_a_mistake_of_one_rank_ends_the_others(recipe: Path, tmp_path: Path) -> None:
    # Rank 0 alone has its data; meanwhile it waits for rank 1.
    shutil.copy(recipe.with_name("pairs.toml"), tmp_path / "pairs-0.toml")
    alone = tmp_path / "alone.toml"
    pairs = str(recipe.with_name("pairs.toml"))
    alone.write_text(recipe.read_text().replace(pairs, f"{tmp_path}/pairs-$RANK.toml"))
    done = torchrun("finetune", "--recipe", str(alone), "--output", str(tmp_path / "run"))
    lines = done.stderr.splitlines()
    (line,) = [line for line in lines if line.startswith("error: ")]
    assert line.startswith("error: rank 1: ")
    assert "pairs-$RANK.toml: no such file" in line
    # The report of torchrun, which itself always ends with 1.
    assert "exitcode  : 2 " in done.stderr
    assert "[rank0]: Traceback" not in done.stderr


@pytest.mark.slow
def test_devices_end_with_the_exit_code_of_the_ranks(tmp_path: Path) -> None:
    words = ("--model", str(tmp_path / "none"), "--task-dir", str(tmp_path), "--devices", "2")
    command = [str(Path(sys.executable).with_name("embedkit")), "eval-mteb", *words]
    done = subprocess.run(
        [*command, "--output", str(tmp_path / "out")],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert lines == [f"error: {tmp_path / 'none'}: no such folder"]
    assert "Traceback" not in done.stderr
