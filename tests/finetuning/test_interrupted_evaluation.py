"""Runs that are asked to stop while they evaluate."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from support.mteb_tasks import two_sts_tasks
from support.small_runs import STEPS, metrics_of, state_of

from embedkit import api
from embedkit.evaluation.summary import Summary
from embedkit.recipe import load_recipe
from embedkit.training.trainer import Interrupted


@contextmanager
def signal_after_a_task_of(evaluation: str) -> Iterator[None]:
    """Ask the process to stop once the first task of an evaluation has its score."""
    merge_into = Summary.merge_into

    def merge_first(self: Summary, path: Path) -> None:
        merge_into(self, path)
        if path.parent.name == evaluation and len(self.scores) == 1:
            signal.raise_signal(signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Summary, "merge_into", merge_first)
        yield


@pytest.mark.slow
def test_a_resumed_run_says_that_its_scores_were_measured_in_two_ways(
    small_recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two_sts_tasks(tmp_path / "tasks")
    told = tmp_path / "told.toml"
    told.write_text('money = "compare: "')
    tables = [f'evaluation.task_dirs=["{tmp_path}/tasks"]', "steps=1", "optim.warmup_steps=0"]
    recipe, run = load_recipe(str(small_recipe), tables), tmp_path / "run"
    with signal_after_a_task_of("after"), pytest.raises(Interrupted):
        api.finetune(recipe, run)
    assert "The scores before and after differ" not in capsys.readouterr().out
    changed = [*tables, "evaluation.dtype=fp16", f'evaluation.instructions="{told}"']
    api.finetune(load_recipe(str(small_recipe), changed), run, resume=True)
    printed, card = capsys.readouterr().out, (run / "model" / "README.md").read_text()
    for text in (printed, card):
        lines = (line.removeprefix("- ") for line in text.splitlines())
        remarks = [line for line in lines if "scores before and after differ" in line]
        assert remarks == [
            "The scores before and after differ in the prompts of money",
            "The scores before and after differ in the precision of all tasks (float16, float32)",
        ]


@pytest.mark.slow
def test_a_run_stops_between_the_tasks_of_an_evaluation_and_resumes_there(
    small_recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two_sts_tasks(tmp_path / "tasks")
    tables = [f'evaluation.task_dirs=["{tmp_path}/tasks"]', "evaluation.every=5"]
    recipe = load_recipe(str(small_recipe), [*tables, "evaluation.before=true"])
    api.finetune(recipe, tmp_path / "whole")
    run = tmp_path / "broken"
    for evaluation, step in (("before", 0), ("step-000005", 5), ("after", STEPS)):
        with signal_after_a_task_of(evaluation), pytest.raises(Interrupted) as stopped:
            api.finetune(recipe, run, resume=run.exists())
        assert stopped.value.step == step
        found = Summary.read(run / "eval" / evaluation / "summary.json")
        assert found.coverage == "1 of 2 tasks"
        if step:
            assert state_of(run)["step"] == f"step-{step:06d}"
    assert "missing: money: not run" in capsys.readouterr().out
    api.finetune(recipe, run, resume=True)
    assert state_of(run) == state_of(tmp_path / "whole")
    assert metrics_of(run) == metrics_of(tmp_path / "whole")
    for evaluation in ("before", "step-000005", "after"):
        found, whole = (
            Summary.read(folder / "eval" / evaluation / "summary.json")
            for folder in (run, tmp_path / "whole")
        )
        assert {n: s.score for n, s in found.scores.items()} == {
            n: s.score for n, s in whole.scores.items()
        }
        assert found.coverage == "2 of 2 tasks"
    results = ModelCard.load(run / "model" / "README.md").data.eval_results
    scores = {name: score.score for name, score in found.scores.items()}
    assert {result.dataset_name: result.metric_value for result in results} == scores
