"""Runs with ``[validation]``: what they export, when they stop, and that kills change neither."""

import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.interrupted import CrashError, at_step, start, wait_for_lines
from support.ranks import run_on_ranks
from support.small_runs import STEPS, metrics_of, state_of, write_source

from embedkit import api, distributed
from embedkit.errors import UserError
from embedkit.finetuning import model as starting_model
from embedkit.finetuning.mixture import open_mixture
from embedkit.finetuning.validation_loss import ValidationLoss
from embedkit.models import hub
from embedkit.objectives.losses import info_nce
from embedkit.recipe import Recipe, load_recipe
from embedkit.training.trainer import Interrupted

# At this rate the best step lies between the first and the last.
VALIDATED = ["validation.share=0.2", "validation.every=3", "optim.lr=3e-3", "checkpoints.keep=1"]
TWO_STAGES = [
    "objective.kind=contextual",
    "objective.temperature=0.07",
    "context={num_context = 5, context_dropout = 0.1}",
]


def validated(recipe: Path | str, *overrides: str) -> Recipe:
    return load_recipe(str(recipe), [*VALIDATED, *overrides])


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "validation.jsonl").read_text().splitlines()]


def checkpoints_of(run: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in (run / "checkpoints").iterdir())


def exported(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


def outcome(run: Path) -> tuple[object, ...]:
    """What must not depend on where a run was killed."""
    weights = {name: tensor.numpy().tobytes() for name, tensor in exported(run).items()}
    # The card is named after the run.
    card = (run / "model" / "README.md").read_text()
    card = card.replace(f"model_name: {run.name}\n", "").replace(f"# {run.name}\n", "")
    return state_of(run), metrics_of(run), lines_of(run), weights, card, checkpoints_of(run)


@pytest.fixture(scope="module")
def whole(small_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from its start to its end. Read it only."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    api.finetune(validated(small_recipe), folder)
    return folder


def test_the_best_step_is_exported_and_its_checkpoint_stays(
    whole: Path, small_recipe: Path
) -> None:
    lines = lines_of(whole)
    assert [line["step"] for line in lines] == [0, 3, 6, 9, 12]
    values = {line["step"]: line["ndcg_at_10"] for line in lines if line["step"]}
    best = max(values, key=lambda step: values[step])
    assert best < STEPS, "the last step is the best: choose another rate for this test"
    assert checkpoints_of(whole) == [best, STEPS]
    stored = load_file(whole / "checkpoints" / f"step-{best:06d}" / "model.safetensors")
    found = exported(whole)
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, stored[f"backbone.model.{name}"], rtol=0, atol=0)
    card = (whole / "model" / "README.md").read_text()
    assert f"fine-tuned for {best} of 12 steps (the best of 4 by ndcg_at_10" in card
    for line in lines:
        for metric in ("loss", "ndcg_at_10"):
            of_sources = [values[metric] for values in line["sources"].values()]
            assert len(of_sources) == 2
            assert line[metric] == pytest.approx(np.mean(of_sources))


def test_validation_changes_no_step_of_training(
    whole: Path, small_recipe: Path, tmp_path: Path
) -> None:
    # Other pairs as validation rows leave the training rows as they are.
    overrides = [over_pairs(small_recipe)]
    api.finetune(load_recipe(str(small_recipe), overrides), tmp_path / "without")
    records = str(write_source(tmp_path, "others", 20, 2))
    more = [f"validation.records={records}", "validation.every=3"]
    api.finetune(load_recipe(str(small_recipe), [*overrides, *more]), tmp_path / "with")
    assert metrics_of(tmp_path / "with") == metrics_of(tmp_path / "without")
    assert state_of(tmp_path / "with") == state_of(tmp_path / "without")
    assert list(lines_of(tmp_path / "with")[0]["sources"]) == ["others"]
    assert not (tmp_path / "without" / "validation.jsonl").exists()


def over_pairs(small_recipe: Path) -> str:
    """Leave one source in the mixture."""
    manifest = small_recipe.with_name("pairs.toml")
    return f"data.mix=[{{manifest = '{manifest}'}}]"


def crash(recipe: Recipe, run: Path, *, after: int) -> None:
    def fail() -> None:
        raise CrashError

    with at_step(after, fail), pytest.raises(CrashError):
        api.finetune(recipe, run, resume=run.exists())


def test_a_run_that_crashed_after_any_step_exports_the_same_model(
    whole: Path, small_recipe: Path, tmp_path: Path
) -> None:
    for after in (2, 5, 9, 12):
        crash(validated(small_recipe), tmp_path / "broken", after=after)
    api.finetune(validated(small_recipe), tmp_path / "broken", resume=True)
    assert outcome(tmp_path / "broken") == outcome(whole)


@pytest.mark.slow
def test_a_run_killed_at_random_moments_exports_the_same_model(
    small_recipe: Path, tmp_path: Path
) -> None:
    recipe = validated(small_recipe, "steps=30", "checkpoints.every=4", "data.workers=1")
    api.finetune(recipe, tmp_path / "whole")
    rng = random.Random(time.time_ns())
    moments = sorted(rng.sample(range(1, 28), 4))
    run = tmp_path / "killed"
    for lines in moments:
        killed = start(api.finetune, recipe, run, resume=(run / "run.json").is_file())
        wait_for_lines(run, lines)
        time.sleep(rng.uniform(0, 0.1))
        killed.kill()
        killed.join()
        assert killed.exitcode == -signal.SIGKILL, f"over before it was killed at {moments}"
    api.finetune(recipe, run, resume=True)
    assert outcome(run) == outcome(tmp_path / "whole"), moments


@pytest.mark.parametrize("metric", ["ndcg_at_10", "loss"])
def test_patience_ends_a_run_where_a_resumed_one_ends_too(
    metric: str, small_recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # At this rate the model soon gets worse.
    overrides = [f"validation.metric={metric}", "optim.lr=0.03", "optim.warmup_steps=0"]
    overrides += ["validation.every=1", "validation.patience=3"]
    recipe = validated(small_recipe, *overrides)
    api.finetune(recipe, tmp_path / "whole")
    lines = lines_of(tmp_path / "whole")
    values = [line[metric] * (-1 if metric == "loss" else 1) for line in lines[1:]]
    best = 1 + values.index(max(values))
    last = lines[-1]["step"]
    assert last == best + 3 < STEPS
    printed = capsys.readouterr().out
    assert f"stopping early after step {last}: the last 3 measurements of {metric}" in printed
    assert f"exported: step {best} of {last}, {metric} " in printed
    assert len(metrics_of(tmp_path / "whole")) == last
    crash(recipe, tmp_path / "broken", after=last - 1)
    crash(recipe, tmp_path / "broken", after=last)
    api.finetune(recipe, tmp_path / "broken", resume=True)
    assert outcome(tmp_path / "broken") == outcome(tmp_path / "whole")
    # A run that has ended stays so, and goes on when it is given more patience.
    api.finetune(recipe, tmp_path / "broken", resume=True)
    assert outcome(tmp_path / "broken") == outcome(tmp_path / "whole")
    api.finetune(
        validated(small_recipe, *overrides, "validation.patience=9"),
        tmp_path / "broken",
        resume=True,
    )
    assert lines_of(tmp_path / "broken")[-1]["step"] > last


def test_a_run_asked_to_stop_before_a_measurement_makes_it_when_it_is_resumed(
    whole: Path, small_recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop() -> None:
        signal.raise_signal(signal.SIGTERM)

    for after in (6, 12):
        with at_step(after, stop), pytest.raises(Interrupted) as stopped:
            api.finetune(
                validated(small_recipe), tmp_path / "run", resume=(tmp_path / "run").exists()
            )
        assert stopped.value.step == after
        assert lines_of(tmp_path / "run")[-1]["step"] == after - 3
    api.finetune(validated(small_recipe), tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(whole)
    before, *later = (line["ndcg_at_10"] for line in lines_of(whole))
    told = "no measured step is better than the model before training" in capsys.readouterr().out
    assert told == (max(later) <= before)


def test_a_damaged_best_checkpoint_ends_a_resumed_run_in_one_line(
    small_recipe: Path, tmp_path: Path
) -> None:
    recipe = validated(small_recipe)
    crash(recipe, tmp_path / "run", after=12)
    best, newest = checkpoints_of(tmp_path / "run")
    assert newest == 9
    weights = tmp_path / "run" / "checkpoints" / f"step-{best:06d}" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"weights of the best step of the run; restore it"):
        api.finetune(recipe, tmp_path / "run", resume=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [["objective.micro_batch_tokens=100"], ["lora.rank=4", "lora.dropout=0.2"], TWO_STAGES],
)
def test_two_ranks_adapters_and_two_stages_end_alike_after_a_crash(
    overrides: list[str], small_recipe: Path, tmp_path: Path
) -> None:
    run_on_ranks(2, check_crash, str(small_recipe), overrides, tmp_path)


def check_crash(small_recipe: str, overrides: list[str], folder: Path) -> None:
    recipe = validated(small_recipe, *overrides)
    api.finetune(recipe, folder / "whole")
    crash(recipe, folder / "broken", after=8)
    distributed.barrier()
    api.finetune(recipe, folder / "broken", resume=True)
    if distributed.is_main():
        found, expected = outcome(folder / "broken"), outcome(folder / "whole")
        assert found[:3] == expected[:3]
        assert found[3] == expected[3]
        assert found[5] == expected[5]


@pytest.mark.slow
def test_ranks_measure_what_one_process_does(
    whole: Path, small_recipe: Path, tmp_path: Path
) -> None:
    run_on_ranks(2, check_values, str(small_recipe), tmp_path / "run", lines_of(whole))


def check_values(small_recipe: str, run: Path, expected: list[dict[str, Any]]) -> None:
    api.finetune(validated(small_recipe), run)
    found = lines_of(run)
    # Dropout differs among numbers of ranks, so that only the model before training is the same.
    for metric in ("loss", "ndcg_at_10"):
        assert found[0][metric] == pytest.approx(expected[0][metric], rel=1e-6)


def test_the_loss_is_that_of_training_without_dropout_and_leaves_no_trace(
    small_recipe: Path,
) -> None:
    recipe = validated(small_recipe, over_pairs(small_recipe), "data.batch_size=16")
    (source,) = open_mixture(recipe).validation
    model = hub.load(recipe.model)
    starting_model.scale_to_unit_norm(model)
    model.train()
    found = ValidationLoss(recipe, model, [source]).of_source(0)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    rows = source.take(range(len(source)))
    assert 4 < len(rows) <= recipe.data.batch_size, "the loss of one batch is compared"
    queries = model.encode([row.query for row in rows], prompt="query: ", max_tokens=32)
    documents = model.encode([row.positive for row in rows], prompt="", max_tokens=32)
    expected = info_nce(
        torch.from_numpy(queries).double(),
        torch.from_numpy(documents).double(),
        torch.arange(len(rows)),
        temperature=recipe.objective.temperature,  # type: ignore[attr-defined]
    )
    assert found == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["validation.every=5"], "give exactly one of share and records: share = 0.02"),
        (
            ["validation.share=0.02", "validation.records=x"],
            "give exactly one of share and records",
        ),
        (["validation.share=0.02", "data.batch_table=x"], "name other pairs in validation.records"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    overrides: list[str], said: str, small_recipe: Path
) -> None:
    with pytest.raises(UserError, match=said):
        load_recipe(str(small_recipe), overrides)
