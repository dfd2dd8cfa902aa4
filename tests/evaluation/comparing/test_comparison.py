import csv
import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from embedkit_cli.app import main
from support.summaries import summary_of, task_score

from embedkit.errors import UserError
from embedkit.evaluation.comparing.comparison import Comparison, compare_groups
from embedkit.evaluation.comparing.formatting import format_comparison
from embedkit.evaluation.comparing.runs import Group, Run, read_run
from embedkit.evaluation.summary import TYPES, Summary

KINDS = {
    "NQ": "Retrieval",
    "FEVER": "Retrieval",
    **dict.fromkeys(("STS12", "STS13", "BIOSSES"), "STS"),
}
TASKS_OF_TYPE = dict(zip(TYPES, (12, 11, 3, 4, 15, 10, 1), strict=True))


def summary(revision: str = "r", **scores: float) -> Summary:
    found = {
        name: task_score(name, KINDS[name], score, revision=revision)
        for name, score in scores.items()
    }
    return summary_of(found, tasks=KINDS)


def compared(*runs: tuple[str, Summary], paper: bool = False) -> Comparison:
    groups = [Group(name, (Run(name, Path(name), found),)) for name, found in runs]
    return compare_groups(groups, paper=paper)


@pytest.fixture
def two() -> Comparison:
    first = summary(NQ=0.2, FEVER=0.3, STS12=0.6, STS13=0.8)
    second = summary(NQ=0.3, FEVER=0.4, STS12=0.5, STS13=0.7)
    return compared(("first_run", first), ("second", second))


def test_a_row_holds_the_means_of_types_and_tasks(two: Comparison) -> None:
    first, second = two.rows
    assert first.types == pytest.approx({"Retrieval": 25, "STS": 70})
    assert (first.average, second.average) == pytest.approx((47.5, 47.5))
    assert two.types == TYPES
    assert [two.best(column) for column in ("Retrieval", "STS")] == pytest.approx([35, 70])
    assert two.best("Clustering") is None


def test_the_average_is_over_tasks_and_not_over_types() -> None:
    (row,) = compared(("a", summary(NQ=0.2, FEVER=0.3, STS12=0.7))).rows
    assert row.average == pytest.approx(40)


def test_only_tasks_that_all_runs_have_are_compared() -> None:
    found = compared(("a", summary(NQ=0.2, STS12=0.9)), ("b", summary(NQ=0.3, FEVER=0.1)))
    assert (found.tasks, found.left_out) == (1, ("FEVER", "STS12"))
    assert [row.average for row in found.rows] == pytest.approx([20, 30])
    with pytest.raises(UserError, match=r"a, b: no task has a score in all of them"):
        compared(("a", summary(NQ=0.2)), ("b", summary(FEVER=0.1)))


def test_the_difference_is_to_the_first_row_and_has_no_interval_of_four_tasks(
    two: Comparison,
) -> None:
    first, second = two.rows
    assert first.difference is None
    assert second.difference is not None
    assert second.difference.mean == pytest.approx(0)
    assert second.difference.low is None
    assert "+0.00 [n < 5]" in format_comparison(two)
    assert "without intervals: fewer than 5 tasks are too few for them" in format_comparison(two)


def test_the_interval_is_student_s_t_over_tasks() -> None:
    first = summary(NQ=0.5, FEVER=0.5, STS12=0.5, STS13=0.5, BIOSSES=0.5)
    second = summary(NQ=0.5, FEVER=0.51, STS12=0.52, STS13=0.53, BIOSSES=0.54)
    found = compared(("a", first), ("b", second))
    # 2.776 is the quantile for four degrees of freedom, and sqrt(2.5 / 5) the standard error.
    half = 2.776 * 0.7071
    assert found.rows[1].difference == pytest.approx((2, 2 - half, 2 + half), abs=1e-3)
    assert "95 % intervals of Student's t over the 5 tasks" in format_comparison(found)


def test_the_best_is_marked_in_every_format(two: Comparison) -> None:
    assert "35.00*" in format_comparison(two)
    assert "| first_run | - | - | - | - | 25.00 | **70.00** | - |" in format_comparison(
        two, "markdown"
    )
    assert r"first\_run & - & - & - & - & 25.00 & \textbf{70.00} & - &" in format_comparison(
        two, "latex"
    )
    first, second = csv.DictReader(io.StringIO(format_comparison(two, "csv")))
    assert (float(first["Retrieval"]), first["Clustering"]) == (25, "")
    assert (first["best"].split()[0], second["best"].split()[0]) == ("STS", "Retrieval")


def test_the_paper_s_rows_agree_with_their_averages() -> None:
    found = compared(("a", summary(NQ=0.2)), paper=True)
    published = [row for row in found.rows if row.published]
    assert len(published) == 10
    for row in published:
        assert tuple(row.types) == TYPES
        weighted = sum(TASKS_OF_TYPE[type_] * mean for type_, mean in row.types.items())
        # Half a unit of the last digit for the means, as much for the average.
        assert weighted / 56 == pytest.approx(row.average, abs=0.1)
    assert "over the 56 tasks of MTEB(eng, v1), the others over 1 task." in format_comparison(found)
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
    rows = [row for row in compared(("a", summary(NQ=0.9)), paper=True).rows if row.published]
    best = max(rows, key=lambda row: row.means[column])
    assert (best.name, best.means[column]) == (name, value)


def test_runs_that_were_measured_otherwise_are_pointed_out() -> None:
    first, second = summary(NQ=0.2, STS12=0.3), summary(NQ=0.3, STS12=0.4)
    assert compared(("a", first), ("b", second)).notes == ()
    nq = replace(second.scores["NQ"], prompts={"query": "query: "}, revision="other", metric="m2")
    drawn = {"NQ": {"documents": 512, "corpus_size": 900, "seed": 0, "hash": "x"}}
    nq = replace(nq, max_tokens=512, contexts=drawn)
    scores = {"NQ": nq, "STS12": replace(second.scores["STS12"], dtype="float16")}
    newer = {name: replace(score, mteb_version="3") for name, score in scores.items()}
    changed = replace(second, scores=newer)
    assert compared(("a", first), ("b", changed)).notes == (
        "The runs differ in the prompts of NQ",
        "The runs differ in the precision of STS12 (float16, float32)",
        "The runs differ in the mteb version of all tasks (2, 3)",
        "The runs differ in the data revision of NQ",
        "The runs differ in the length limit of NQ (128, 512)",
        "The runs differ in the contexts of NQ",
        "The runs differ in the metric of NQ (m2, metric)",
    )


def test_a_run_is_a_training_s_folder_or_an_evaluation_s(tmp_path: Path) -> None:
    for place in ("trained/eval/after", "trained/eval/before", "measured"):
        summary(NQ=0.2).write(tmp_path / place / "summary.json")
    names = [
        read_run(tmp_path / place).name for place in ("trained", "trained/eval/before", "measured")
    ]
    assert names == ["trained", "trained before", "measured"]


def test_what_is_no_evaluation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds neither summary\.json nor eval/after"):
        read_run(tmp_path)
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(UserError, match=r"summary\.json: is no summary"):
        read_run(tmp_path)
    with pytest.raises(UserError, match=r"two runs are called a"):
        compared(("a", summary(NQ=0.2)), ("a", summary(NQ=0.2)))


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
