"""Who asks for the paper's instructions: the command, the recipe of a run, and Python."""

import shutil
from pathlib import Path
from typing import Any

import datasets
import pytest
from embedkit_cli.app import app
from typer.testing import CliRunner

import embedkit
from embedkit import api
from embedkit.errors import UserError
from embedkit.evaluation.mteb.task_selection import select_tasks
from embedkit.evaluation.summary import Summary

ALIKE = "Retrieve semantically similar text: "


def recipe_with(folder: Path, small_recipe: Path, *lines: str) -> Path:
    path = folder / "recipe.toml"
    evaluation = ["", "[evaluation]", 'tasks = ["STS12"]', *lines, ""]
    path.write_text(small_recipe.read_text() + "\n".join(evaluation))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "asked", "expected"),
    [
        ([], [], ""),
        ([], ["--instructions", "paper"], ALIKE),
        (['instructions = "paper"'], [], ALIKE),
        (['instructions = "paper"'], ["--instructions", "none"], ""),
    ],
)
def test_the_command_does_what_the_recipe_says_unless_it_is_told_otherwise(
    said: list[str],
    asked: list[str],
    expected: str,
    mirror: Path,
    tiny_model: Path,
    small_recipe: Path,
    tmp_path: Path,
) -> None:
    recipe = recipe_with(tmp_path, small_recipe, *said)
    words = ["eval-mteb", "--model", tiny_model, "--data-dir", mirror, "--recipe", recipe, *asked]
    words += ["--output", tmp_path / "out", "--dtype", "fp32"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    summary = Summary.read(tmp_path / "out" / "summary.json")
    assert summary.scores["STS12"].prompts == {"text": expected}
    assert f"\nprompts: {'the paper' if expected else 'none'}" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("instructions", ["none", "paper"])
def test_a_run_is_scored_before_and_after_as_its_recipe_says(
    instructions: str,
    mirror: Path,
    small_recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    datasets.load_dataset(str(mirror / "mteb/sts12-sts"), cache_dir=str(tmp_path / "elsewhere"))
    (built,) = (tmp_path / "elsewhere").glob("*/*/0.0.0/*/")
    (task,) = select_tasks(tasks=["STS12"])
    # What an online machine has under $HF_HOME/datasets once it has loaded the task.
    cached = tmp_path / "cached/mteb___sts12-sts/default/0.0.0" / task.metadata.revision
    shutil.copytree(built, cached)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cached")
    recipe = recipe_with(tmp_path, small_recipe, f'instructions = "{instructions}"')
    settings = ["steps=1", "optim.warmup_steps=0"]
    api.finetune(embedkit.load_recipe(str(recipe), settings), tmp_path / "run")
    for moment in ("before", "after"):
        summary = Summary.read(tmp_path / "run" / "eval" / moment / "summary.json")
        expected = ALIKE if instructions == "paper" else ""
        assert summary.scores["STS12"].prompts == {"text": expected}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--no-instructions"], "--no-instructions: no such option; did you mean --instructions"),
        (
            ["--instructions", "all"],
            "--instructions: write none, paper, or the path of a TOML or JSON file (got 'all')",
        ),
    ],
)
def test_the_command_refuses_what_it_no_longer_knows(words: list[str], told: str) -> None:
    given = ["eval-mteb", "--model", "starter", "--tasks", "STS12", "--output", "out", *words]
    error = CliRunner().invoke(app, given).exception
    assert isinstance(error, UserError)
    assert told in str(error)


@pytest.mark.parametrize(
    ("instructions", "told"),
    [
        (True, r"Input should be a valid string \(got True\)"),
        ("all", r"write none, paper, or the path of a TOML or JSON file \(got 'all'\)"),
    ],
)
def test_python_refuses_what_names_no_instructions(
    instructions: Any, told: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=f"instructions: {told}"):
        embedkit.evaluate("starter", ["STS12"], tmp_path, instructions=instructions)
    with pytest.raises(UserError, match=f"instructions: {told}"):
        embedkit.estimate("starter", ["STS12"], instructions=instructions)
