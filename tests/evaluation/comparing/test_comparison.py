import csv
import io
import sys
from pathlib import Path

import numpy as np
import pytest
from embedkit_cli.app import main

from embedkit.errors import UserError
from embedkit.evaluation.comparing.comparison import (
    FORMATS,
    Comparison,
    as_csv,
    as_latex,
    as_markdown,
    as_plain,
    compare_summaries,
    interval,
    read_run,
)
from embedkit.evaluation.summary import TYPES, Summary, TaskScore

KINDS = {"NQ": "Retrieval", "FEVER": "Retrieval", "STS12": "STS", "STS13": "STS"}
TASKS_OF_TYPE = dict(zip(TYPES, (12, 11, 3, 4, 15, 10, 1), strict=True))


def summary(revision: str = "r", **scores: float) -> Summary:
    found = {
        name: TaskScore(name, KINDS[name], "metric", score, {}, 1.0, revision, ("test",))
        for name, score in scores.items()
    }
    return Summary("m", "i", "float32", KINDS, found, {}, {"mteb": "2"})


@pytest.fixture
def two() -> Comparison:
    first = summary(NQ=0.2, FEVER=0.3, STS12=0.6, STS13=0.8)
    second = summary(NQ=0.3, FEVER=0.4, STS12=0.5, STS13=0.7)
    return compare_summaries([("first_run", first), ("second", second)])


def test_a_row_holds_the_means_of_types_and_tasks(two: Comparison) -> None:
    first, second = two.rows
    assert first.types == pytest.approx({"Retrieval": 25, "STS": 70})
    assert (first.average, second.average) == pytest.approx((47.5, 47.5))
    assert two.types == TYPES
    assert [two.best(column) for column in ("Retrieval", "STS")] == pytest.approx([35, 70])
    assert two.best("Clustering") is None


def test_the_average_is_over_tasks_and_not_over_types() -> None:
    (row,) = compare_summaries([("a", summary(NQ=0.2, FEVER=0.3, STS12=0.7))]).rows
    assert row.average == pytest.approx(40)


def test_only_tasks_that_all_runs_have_are_compared() -> None:
    found = compare_summaries(
        [("a", summary(NQ=0.2, STS12=0.9)), ("b", summary(NQ=0.3, FEVER=0.1))]
    )
    assert (found.tasks, found.left_out) == (1, ("FEVER", "STS12"))
    assert [row.average for row in found.rows] == pytest.approx([20, 30])
    with pytest.raises(UserError, match=r"a, b: no task has a score in all of them"):
        compare_summaries([("a", summary(NQ=0.2)), ("b", summary(FEVER=0.1))])


def test_a_difference_that_is_the_same_in_every_task_has_no_width() -> None:
    found = interval([2.0, 2.0, 2.0])
    assert (found.mean, found.low, found.high) == (2.0, 2.0, 2.0)


def test_the_interval_is_that_of_the_mean_over_many_tasks() -> None:
    values = np.random.default_rng(3).normal(1.0, 2.0, size=400)
    found = interval(list(values))
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert found.low == pytest.approx(values.mean() - half, abs=0.02)
    assert found.high == pytest.approx(values.mean() + half, abs=0.02)
    assert interval(list(values)) == found
    assert interval(list(values), seed=1) != found


def test_the_difference_is_to_the_first_row_and_paired_by_task(two: Comparison) -> None:
    first, second = two.rows
    assert first.difference is None
    assert second.difference is not None
    assert second.difference.mean == pytest.approx(0)
    assert (second.difference.low, second.difference.high) == pytest.approx((-10, 10))


def test_the_best_is_marked_in_every_format(two: Comparison) -> None:
    assert "35.00*" in as_plain(two)
    assert "| first_run | - | - | - | - | 25.00 | **70.00** | - |" in as_markdown(two)
    assert r"first\_run & - & - & - & - & 25.00 & \textbf{70.00} & - &" in as_latex(two)
    first, second = csv.DictReader(io.StringIO(as_csv(two)))
    assert (float(first["Retrieval"]), first["Clustering"]) == (25, "")
    assert (first["best"].split()[0], second["best"].split()[0]) == ("STS", "Retrieval")


@pytest.mark.parametrize("name", ["text", "latex", "markdown"])
def test_what_the_interval_is_made_of_is_stated(name: str, two: Comparison) -> None:
    assert "10,000 bootstrap resamples of the 4 tasks (seed 0)" in FORMATS[name](two)


def test_the_paper_s_rows_agree_with_their_averages() -> None:
    found = compare_summaries([("a", summary(NQ=0.2))], paper=True)
    published = [row for row in found.rows if row.published]
    assert len(published) == 10
    for row in published:
        assert tuple(row.types) == TYPES
        weighted = sum(TASKS_OF_TYPE[type_] * mean for type_, mean in row.types.items())
        # Half a unit of the last digit for the means, as much for the average.
        assert weighted / 56 == pytest.approx(row.average, abs=0.1)
    assert "over the 56 tasks of MTEB(eng, v1), the others over 1 tasks" in as_plain(found)
    # Far below the paper's, and still the best of the runs.
    assert found.best("average") == pytest.approx(20)


@pytest.mark.parametrize(
    ("column", "name", "value"),
    [
        ("Classification", "ModernBERT-large", 62.4),
        ("Clustering", "NeoBERT-4096", 40.8),
        ("PairClassification", "NeoBERT-4096", 76.2),
        ("Reranking", "RoBERTa-large", 51.3),
        ("Retrieval", "NeoBERT-4096", 31.6),
        ("STS", "NeoBERT-4096", 74.8),
        ("Summarization", "BERT-large", 31.2),
        ("average", "NeoBERT-4096", 51.3),
    ],
)
def test_the_best_of_the_paper_s_rows_is_what_it_prints_in_bold(
    column: str, name: str, value: float
) -> None:
    rows = [
        row for row in compare_summaries([("a", summary(NQ=0.9))], paper=True).rows if row.published
    ]
    best = max(rows, key=lambda row: row.means[column])
    assert (best.name, best.means[column]) == (name, value)


def test_other_data_under_one_name_are_pointed_out() -> None:
    found = compare_summaries([("a", summary(NQ=0.2)), ("b", summary(revision="other", NQ=0.3))])
    assert "NQ: the runs differ in its revision." in as_plain(found)


def test_a_run_is_a_training_s_folder_or_an_evaluation_s(tmp_path: Path) -> None:
    for place in ("trained/eval/after", "trained/eval/before", "measured"):
        summary(NQ=0.2).write(tmp_path / place / "summary.json")
    names = [
        read_run(tmp_path / place)[0] for place in ("trained", "trained/eval/before", "measured")
    ]
    assert names == ["trained", "trained before", "measured"]


def test_what_is_no_evaluation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds neither summary\.json nor eval/after"):
        read_run(tmp_path)
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(UserError, match=r"summary\.json: is no summary"):
        read_run(tmp_path)
    with pytest.raises(UserError, match=r"two runs are called a"):
        compare_summaries([("a", summary(NQ=0.2)), ("a", summary(NQ=0.2))])


def test_the_command_prints_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        summary(NQ=0.2).write(tmp_path / name / "summary.json")
    words = ["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--format", "markdown", "--paper"]
    monkeypatch.setattr(sys, "argv", ["embedkit", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:4]] == ["| a", "| b"]
    assert any(line.startswith("| NeoBERT-4096 (paper) | 61.6 |") for line in lines)
