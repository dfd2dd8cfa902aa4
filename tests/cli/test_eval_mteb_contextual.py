"""A contextual model's folder, given to each command that takes a model."""

import sys
from pathlib import Path

import pytest
from embedkit_cli.app import app, main
from support.contextual_tasks import tiny_contextual
from support.task_folders import write_task
from typer.testing import CliRunner

from embedkit.evaluation.mteb import speed
from embedkit.evaluation.summary import Summary
from embedkit.models.contextual.export import write_contextual

TASKS = ["sts", "retrieval"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A contextual model of 8 slots, in ``model``, and once more with a frozen context."""
    root = tmp_path_factory.mktemp("contextual")
    model = tiny_contextual()
    write_contextual(model, root / "model")
    write_contextual(model, root / "frozen", context=model.build_context(["one", "two"]))
    for type_ in TASKS:
        write_task(root / "tasks" / type_, type_)
    return root


def eval_mteb(folder: Path, model: str | Path, output: Path, *words: str) -> Summary:
    given = ["eval-mteb", "--model", str(model), "--task-dir", str(folder / "tasks")]
    result = CliRunner().invoke(app, [*given, "--output", str(output), "--dtype", "fp32", *words])
    assert result.exit_code == 0, (result.output, result.exception)
    return Summary.read(output / "summary.json")


@pytest.mark.slow
def test_documents_and_seed_of_the_contexts_can_be_chosen(folder: Path, tmp_path: Path) -> None:
    words = ("--context-documents", "3", "--context-seed", "5")
    summary = eval_mteb(folder, folder / "model", tmp_path, *words)
    facts = {name: each.contexts[name] for name, each in summary.scores.items()}
    assert facts.keys() == set(TASKS)
    assert {(each["documents"], each["seed"]) for each in facts.values()} == {(3, 5)}
    whole = eval_mteb(folder, folder / "model", tmp_path / "whole", "--truncate-dim", "7")
    facts = {name: each.contexts[name] for name, each in whole.scores.items()}
    assert {(each["documents"], each["seed"]) for each in facts.values()} == {(8, 0)}
    assert whole.model.endswith("@7")


def test_a_frozen_model_is_scored_as_it_is(folder: Path, tmp_path: Path) -> None:
    summary = eval_mteb(folder, folder / "frozen", tmp_path)
    assert {each.contexts[name]["documents"] for name, each in summary.scores.items()} == {2}
    assert not (tmp_path / "contexts").exists()


def test_an_estimate_of_a_contextual_model_names_what_it_leaves_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "_SECONDS", 0.05)
    words = ["eval-mteb", "--model", str(folder / "model"), "--estimate", "--dtype", "fp32"]
    tasks = ["--task-dir", str(folder / "tasks")]
    result = CliRunner().invoke(app, [*words, *tasks, "--context-documents", "6"])
    assert result.exit_code == 0, (result.output, result.exception)
    assert "not counted: a context of 6 documents a task" in result.output


def refusal(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    monkeypatch.setattr(sys, "argv", ["embedkit", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    told = capsys.readouterr()
    assert not told.out
    (line,) = told.err.splitlines()
    return line


@pytest.mark.parametrize(
    ("model", "words", "told"),
    [
        ("starter", ["--context-documents", "3"], "--context-documents: starter has one stage"),
        ("starter", ["--context-seed", "0"], "--context-seed: starter has one stage"),
        ("frozen", ["--context-seed", "0"], "--context-seed: frozen has a frozen context"),
        ("model", ["--context-documents", "9"], "a context of 9 documents: the model has 8 slots"),
        (
            "model",
            ["--context-documents", "-1"],
            "--context-documents: Input should be greater than or equal to 0",
        ),
    ],
)
def test_contexts_that_a_model_cannot_have_are_refused(
    model: str,
    words: list[str],
    told: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = model if model == "starter" else str(folder / model)
    command = ["eval-mteb", "--model", given, "--task-dir", str(folder / "tasks"), *words]
    for more in (["--output", str(tmp_path / "out")], ["--estimate"]):
        assert told in refusal([*command, *more], monkeypatch, capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("model", ["model", "frozen"])
@pytest.mark.parametrize(
    "command",
    [
        ["eval-perplexity", "--data", "{tasks}/sts/test.jsonl", "--lengths", "8", "--model"],
        ["cluster", "--recipe", "{recipe}", "--surrogate"],
        ["mine", "--source", "{source}", "--model"],
    ],
    ids=lambda command: command[0],
)
def test_commands_that_need_one_stage_say_so(
    command: list[str],
    model: str,
    folder: Path,
    small_recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = {"tasks": folder / "tasks", "recipe": small_recipe}
    files["source"] = small_recipe.with_name("pairs.toml")
    words = [word.format(**files) for word in command]
    output = ["--output", str(tmp_path / "out")]
    line = refusal([*words, str(folder / model), *output], monkeypatch, capsys)
    assert f"{folder / model}: is a contextual model, whose vectors depend on a corpus" in line


@pytest.mark.slow
def test_compare_sets_a_contextual_evaluation_beside_another(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("model", "frozen"):
        eval_mteb(folder, folder / name, tmp_path / name)
    result = CliRunner().invoke(app, ["compare", str(tmp_path / "model"), str(tmp_path / "frozen")])
    assert result.exit_code == 0, (result.output, result.exception)
    line = refusal(["compare", str(folder / "model")], monkeypatch, capsys)
    assert "holds neither summary.json nor eval/after/summary.json" in line
