"""What a run says before it starts of the data that its evaluation reads."""

import shutil
from pathlib import Path

import datasets
import pytest
from embedkit_cli.app import app
from typer.testing import CliRunner

from embedkit.errors import DataError
from embedkit.evaluation.mteb import reach
from embedkit.evaluation.mteb.task_selection import select_tasks

NAMES = ["STS12", "CQADupstackRetrieval", "BIOSSES"]


@pytest.fixture(autouse=True)
def _no_copies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "copies")


def test_tasks_are_out_of_reach_of_a_hub_that_does_not_answer(
    mirrored_rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDKIT_HUB", str(mirrored_rows))
    line = reach.report(select_tasks(tasks=NAMES), None) or ""
    # One part of the mean is there.
    assert "2 of 3 tasks cannot be read now (CQADupstackRetrieval, BIOSSES), since the hub" in line
    monkeypatch.setattr(reach, "hub_answers", lambda: True)
    line = reach.report(select_tasks(tasks=NAMES), None) or ""
    assert line == "evaluation: the data of all 3 tasks can be read"


def test_a_copy_that_datasets_made_is_within_reach(mirrored_rows: Path, tmp_path: Path) -> None:
    tasks = select_tasks(tasks=["AskUbuntuDupQuestions"])
    assert "1 of 1 tasks cannot be read" in (reach.report(tasks, None) or "")
    repository, made = mirrored_rows / "mteb/AskUbuntuDupQuestions", tmp_path / "made"
    datasets.load_dataset(str(repository), "corpus", cache_dir=str(made))
    # Under the name that datasets gives a copy from the hub.
    (built,) = filter(Path.is_dir, made.iterdir())
    shutil.copytree(built, tmp_path / "copies/mteb___ask_ubuntu_dup_questions")
    assert reach.report(tasks, None) == "evaluation: the data of all 1 tasks can be read"


def test_tasks_that_bring_their_data_need_no_line() -> None:
    assert reach.report([], None) is None


def test_a_mirror_that_is_named_has_to_be_complete(mirrored_rows: Path) -> None:
    whole = reach.report(select_tasks(tasks=["STS12"]), mirrored_rows)
    assert whole == "evaluation: the data of all 1 tasks can be read"
    told = r"lacks the data of 2 of 3 tasks \(mteb/CQADupstackAndroid.*, mteb/.* and 9 more\); put"
    with pytest.raises(DataError, match=told):
        reach.report(select_tasks(tasks=NAMES), mirrored_rows)


def test_a_run_is_refused_before_it_starts_if_its_mirror_lacks_a_task(
    mirrored_rows: Path, small_recipe: Path, tmp_path: Path
) -> None:
    recipe, run = tmp_path / "recipe.toml", tmp_path / "run"
    evaluation = f'\n[evaluation]\ntasks = ["STS12", "BIOSSES"]\ndata_dir = "{mirrored_rows}"\n'
    recipe.write_text(small_recipe.read_text() + evaluation)
    words = ["finetune", "--recipe", str(recipe), "--output", str(run)]
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, DataError)
    assert "lacks the data of 1 of 2 tasks (mteb/biosses-sts)" in str(error)
    assert not run.exists()
