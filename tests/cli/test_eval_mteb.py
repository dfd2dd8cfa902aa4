import json
import os
import signal
import time
from pathlib import Path

import pytest
from embedkit_cli.app import app
from support.interrupted import command, start
from support.task_folders import write_task
from typer.testing import CliRunner

from embedkit.errors import UserError
from embedkit.evaluation.summary import Summary


def message(*arguments: str) -> str:
    given = ["eval-mteb", "--model", "starter", "--output", "out", *arguments]
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
    line = message("--tasks", "STS12", "STS13", "--dtype", "fp8")
    assert line == "--dtype: 'fp8' is not one of 'auto', 'bf16', 'fp16', 'fp32'"


def test_a_task_folder_that_is_not_there_is_refused() -> None:
    assert message("--task-dir", "absent/folder") == "--task-dir absent/folder: no such folder"


def test_words_after_tasks_are_tasks_and_elsewhere_a_mistake() -> None:
    assert "STS13: an argument without its option" in message("--benchmark", "MTEB", "STS13")


def test_results_need_a_folder() -> None:
    error = (
        CliRunner().invoke(app, ["eval-mteb", "--model", "starter", "--tasks", "STS12"]).exception
    )
    assert str(error) == "--output is missing: name the folder that the results go to"


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        (
            "--cache-size",
            "plenty",
            "--cache-size: write a number and a unit, such as 20GB (got 'plenty')",
        ),
        ("--truncate-dim", "385", "--truncate-dim: starter has vectors of 384 dimensions; choose"),
        ("--truncate-dim", "0", "--truncate-dim: Input should be greater than 0 (got 0)"),
        ("--data-dir", "absent", "--data-dir: there is no folder absent"),
    ],
)
def test_a_value_that_cannot_be_is_refused(option: str, value: str, told: str) -> None:
    assert told in message("--tasks", "STS12", option, value)


def test_more_devices_than_gpus_are_refused_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.distributed.run.main", lambda _: pytest.fail("started torchrun"))
    line = message("--tasks", "STS12", "--devices", "8")
    assert line == "--devices: choose from 1 to 2, the number of GPUs (got 8)"


@pytest.mark.slow
def test_the_first_dimensions_are_scored_under_a_name_of_their_own(tmp_path: Path) -> None:
    folder, output = write_task(tmp_path / "mine", "sts"), tmp_path / "out"
    given = ["eval-mteb", "--model", "starter", "--output", str(output), "--dtype", "fp32"]
    given += ["--task-dir", str(folder), "--cache-size", "1MB"]
    scores = []
    for cut in ([], ["--truncate-dim", "3"]):
        result = CliRunner().invoke(app, [*given, *cut])
        assert result.exit_code == 0, result.output
        summary = Summary.read(output / "summary.json")
        scores.append((summary.model, summary.scores["mine"].score))
    assert scores[0][1] != scores[1][1]
    assert scores[1][0] == f"{scores[0][0]}@3"


def test_half_precision_is_noted_and_scores_alike(tmp_path: Path, tiny_model: Path) -> None:
    folder = write_task(tmp_path / "mine", "sts")
    found = {}
    for dtype in ("fp16", "fp32"):
        output = tmp_path / dtype
        given = ["eval-mteb", "--model", str(tiny_model), "--task-dir", str(folder)]
        result = CliRunner().invoke(app, [*given, "--dtype", dtype, "--output", str(output)])
        assert result.exit_code == 0, result.output
        found[dtype] = Summary.read(output / "summary.json")
    assert found["fp16"].dtype == "float16"
    assert found["fp16"].identity != found["fp32"].identity
    scores = [summary.scores["mine"].score for summary in found.values()]
    # Rounding changes the order of no two pairs, on which Spearman's correlation depends.
    assert scores[0] == pytest.approx(scores[1], abs=1e-9)


def test_help_shows_every_choice() -> None:
    wide = {"COLUMNS": "120", "TERM": "dumb"}
    text = CliRunner().invoke(app, ["eval-mteb", "--help"], env=wide).output
    choices = ("--model", "--benchmark", "--tasks", "--task-dir", "--recipe", "--dtype")
    more = ("--data-dir", "--truncate-dim", "--no-cache", "--cache-size", "--estimate", "--devices")
    for option in (*choices, *more):
        assert option in text


@pytest.mark.parametrize("sound", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_failed_task_is_exit_code_1(tmp_path: Path, sound: bool) -> None:
    choice = ["--task-dir", str(write_task(tmp_path / "mine", "sts"))]
    # Without a hub, the data of mteb's own tasks is out of reach.
    choice = choice if sound else ["--tasks", "BIOSSES"]
    given = ["eval-mteb", "--model", "starter", "--output", str(tmp_path / "out"), *choice]
    result = CliRunner().invoke(app, [*given, "--dtype", "fp32"])
    assert result.exit_code == (0 if sound else 1), result.output
    assert ("1 of 1 tasks" if sound else "0 of 1 tasks") in result.output
    assert sound == ("missing: BIOSSES: " not in result.output)
    assert sound == ("; --data-dir reads a copy of the hub's data sets" not in result.output)
    assert (tmp_path / "out" / "summary.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "devices", "type_"),
    [
        (signal.SIGTERM, 1, "retrieval"),
        (signal.SIGINT, 1, "retrieval"),
        (signal.SIGINT, 2, "retrieval"),  # All ranks encode it together.
        (signal.SIGTERM, 2, "sts"),  # One rank scores it alone.
    ],
)
def test_a_signal_prints_the_scores_so_far_and_how_to_go_on(
    kind: signal.Signals, devices: int, type_: str, tmp_path: Path
) -> None:
    output, screen = tmp_path / "out", tmp_path / "screen"
    write_task(tmp_path / "tasks" / "a", "sts")
    long = write_task(tmp_path / "tasks" / "b", type_)
    file = "corpus.jsonl" if type_ == "retrieval" else "test.jsonl"
    texts = [f"{n} words " * 100 for n in range(20_000)]
    rows: list[dict[str, object]] = [
        {"_id": f"more{n}", "text": text}
        if type_ == "retrieval"
        else {"sentence1": text, "sentence2": f"other {text}", "score": n}
        for n, text in enumerate(texts)
    ]
    with (long / file).open("a") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)
    words = ["eval-mteb", "--model", "starter", "--task-dir", str(tmp_path / "tasks")]
    words += ["--output", str(output), "--no-cache"]
    words += ["--devices", str(devices)] if devices > 1 else []
    process = start(command, words, screen)
    give_up = time.monotonic() + 120
    while not (output / "summary.json").exists():
        assert process.is_alive(), screen.read_text()
        assert time.monotonic() < give_up
        time.sleep(0.1)
    assert process.pid is not None
    os.killpg(process.pid, kind)
    process.join(60)
    assert process.exitcode == 128 + kind, screen.read_text()
    printed = screen.read_text()
    assert "missing: b: not run" in printed
    assert "forcefully" not in printed, "torchrun had to kill a rank"
    again = f"stopped after 1 of 2 tasks; continue with: embedkit {' '.join(words)}"
    assert again in " ".join(printed.split())
    assert list(Summary.read(output / "summary.json").scores) == ["a"]
