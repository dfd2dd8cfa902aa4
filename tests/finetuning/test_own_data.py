"""Runs on own data: what is chosen for them, and that the files written give the same run."""

import csv
import json
import random
import tomllib
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import embedkit
from embedkit.errors import DataError, UserError
from embedkit.evaluation.failures.verdict import verdict
from embedkit.finetuning.own_data import plan

WORDS = ["fever", "chills", "pain", "rash", "cough", "nausea", "joint", "bone", "liver", "kidney"]


def write_csv(
    path: Path, rows: int, header: tuple[str, ...] = ("id", "Question", "answer")
) -> Path:
    rng = random.Random(rows)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for number in range(rows):
            texts = [" ".join(rng.choices(WORDS, k=4)) for _ in header[1:]]
            writer.writerow([number, *(f"{text} {number}" for text in texts)])
    return path


def chosen(run: Any) -> dict[str, object]:
    return {one.key: one.value for one in run.choices}


def test_every_setting_follows_from_the_data_and_has_a_reason(
    tmp_path: Path, tiny_model: Path
) -> None:
    data = write_csv(tmp_path / "faq.csv", 700)
    run = plan(data, tmp_path / "run", model=str(tiny_model))
    settings = chosen(run)
    assert settings["columns.query"] == "Question"
    assert settings["columns.positive"] == "answer"
    assert settings["ignore"] == "id"
    assert settings["held_out.share"] == 0.2
    assert settings["data.batch_size"] == 32
    assert run.recipe.data.batch_size == 32
    assert run.recipe.validation is not None
    assert run.recipe.evaluation.held_out
    assert all(one.reason for one in run.choices)
    assert plan(data, tmp_path / "run", model=str(tiny_model)) == run


def test_larger_data_take_larger_batches_and_fewer_passes(tmp_path: Path, tiny_model: Path) -> None:
    small, large = (
        plan(write_csv(tmp_path / f"{rows}.csv", rows), tmp_path, model=str(tiny_model)).recipe
        for rows in (60, 6000)
    )
    assert (small.data.batch_size, large.data.batch_size) == (4, 64)
    assert small.optim.lr < large.optim.lr
    passes = [r.steps * r.data.batch_size / n for r, n in ((small, 48), (large, 5700)) if r.steps]
    assert passes[0] > 2 * passes[1]


def test_repeats_and_empty_rows_are_left_out_and_counted(tmp_path: Path, tiny_model: Path) -> None:
    data = write_csv(tmp_path / "faq.csv", 100)
    lines = data.read_text().splitlines()
    data.write_text("\n".join([*lines, lines[1], "7,,an answer"]) + "\n")
    run = plan(data, tmp_path / "run", model=str(tiny_model))
    (reason,) = (one.reason for one in run.choices if one.key.startswith("deduplicate"))
    assert reason == "2 of 102 rows repeat another or lack a text"


def test_negatives_are_used_up_to_four_and_none_is_a_document_of_the_test(
    tmp_path: Path, tiny_model: Path
) -> None:
    header = ("id", "query", "positive", *(f"negative_{number}" for number in range(1, 7)))
    data = write_csv(tmp_path / "faq.csv", 200, header)
    run = plan(data, tmp_path / "run", model=str(tiny_model))
    assert run.manifest.negatives_per_query == 4
    assert run.manifest.columns.negative_concepts == run.manifest.columns.negatives


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        (("id", "query", "positive"), 30, "30 different documents, too few .* bring at least 40"),
        (
            ("id", "query", "positive", "score"),
            60,
            "score, .* --column PART=NAME, .* --ignore NAME",
        ),
        (("id", "left", "right"), 60, "no column 'query'"),
    ],
)
def test_data_that_do_not_fit_are_refused(
    header: tuple[str, ...], rows: int, message: str, tmp_path: Path, tiny_model: Path
) -> None:
    data = write_csv(tmp_path / "faq.csv", rows, header)
    with pytest.raises(DataError, match=message):
        plan(data, tmp_path / "run", model=str(tiny_model))


def test_columns_may_be_named_and_ignored(tmp_path: Path, tiny_model: Path) -> None:
    data = write_csv(tmp_path / "faq.csv", 60, ("id", "left", "right", "score"))
    columns = {"query": "left", "positive": "right"}
    run = plan(data, tmp_path, model=str(tiny_model), columns=columns, ignore=["score"])
    assert run.manifest.columns.query == ("left",)
    assert run.manifest.ignore == ("score", "id")


def test_a_recipe_and_data_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"takes a recipe \(--recipe\) or own data \(--data\)"):
        embedkit.finetune("starter", tmp_path / "run", data=tmp_path / "faq.csv")
    with pytest.raises(UserError, match="ignore: goes with data"):
        embedkit.finetune("starter", tmp_path / "run", ignore=["score"])


def test_init_leaves_other_files_alone(tmp_path: Path, tiny_model: Path) -> None:
    data = write_csv(tmp_path / "faq.csv", 60)
    with pytest.raises(DataError, match="is not empty; choose another --output"):
        embedkit.init(data, tmp_path, model=str(tiny_model))


@pytest.mark.slow
def test_the_files_of_a_run_give_the_same_run_and_it_ends_with_a_verdict(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "faq.csv", 120)
    short = ["steps=6", "validation.every=3", "precision=fp32", "optim.lr=1e-3"]
    embedkit.finetune(data="faq.csv", model=str(tiny_model), overrides=short)
    assert " are answered better and " in capsys.readouterr().out
    run = tmp_path / "runs" / "faq"
    assert tomllib.loads((run / "manifests" / "faq.toml").read_text())["columns"]["concept"]

    embedkit.finetune("runs/faq/recipe.toml", "again")
    recipe, _ = embedkit.init("faq.csv", model=str(tiny_model), overrides=short)
    embedkit.finetune(recipe, "third")
    for other in ("again", "third"):
        assert numbers(tmp_path / other) == numbers(run)
        theirs = load_file(tmp_path / other / "model" / "model.safetensors")
        ours = load_file(run / "model" / "model.safetensors")
        assert all(theirs[name].equal(ours[name]) for name in ours)
    assert list(verdict(run / "eval" / "before", run / "eval" / "after"))


def numbers(run: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    timed = ("seconds", "tokens_per_second", "mfu")
    return [{key: value for key, value in line.items() if key not in timed} for line in lines]
