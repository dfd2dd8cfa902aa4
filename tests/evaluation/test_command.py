from pathlib import Path

import pytest
import typer
from embedkit_cli.evaluate import eval_mteb
from evaluation.folders import write_task
from typer.testing import CliRunner

from embedkit.errors import UserError

app = typer.Typer()
app.command()(eval_mteb)


def message(*arguments: str) -> str:
    given = ["--model", "starter", "--output", "out", *arguments]
    error = CliRunner().invoke(app, given).exception
    assert isinstance(error, UserError)
    return str(error)


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ([], 0),
        (["--tasks", "STS12", "--task-dir", "mine"], 2),
        (["--recipe", "r", "--tasks", "x"], 2),
    ],
)
def test_exactly_one_choice_of_tasks_is_asked_for(arguments: list[str], given: int) -> None:
    expected = f"exactly one of --benchmark, --tasks, --task-dir, --recipe (got {given})"
    assert expected in message(*arguments)


def test_an_unknown_precision_is_refused() -> None:
    assert "--dtype fp8: must be auto, bf16" in message(
        "--tasks", "STS12", "STS13", "--dtype", "fp8"
    )


def test_a_task_folder_that_is_not_there_is_refused() -> None:
    assert message("--task-dir", "absent/folder") == "--task-dir absent/folder: no such folder"


def test_words_after_tasks_are_tasks_and_elsewhere_a_mistake() -> None:
    assert "STS13: an argument without its option" in message("--benchmark", "MTEB", "STS13")


def test_help_shows_every_choice() -> None:
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120", "TERM": "dumb"}).output
    for option in ("--model", "--benchmark", "--tasks", "--task-dir", "--recipe", "--dtype"):
        assert option in text


@pytest.mark.parametrize("sound", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_failed_task_is_exit_code_1(tmp_path: Path, sound: bool) -> None:
    choice = ["--task-dir", str(write_task(tmp_path / "mine", "sts"))]
    # Without a hub, the data of mteb's own tasks is out of reach.
    choice = choice if sound else ["--tasks", "BIOSSES"]
    given = ["--model", "starter", "--output", str(tmp_path / "out"), "--dtype", "fp32", *choice]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == (0 if sound else 1), result.output
    assert ("1 of 1 tasks" if sound else "0 of 1 tasks") in result.output
    assert sound == ("missing: BIOSSES: " not in result.output)
    assert (tmp_path / "out" / "summary.json").is_file()
