import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from support.summaries import summary_of, task_score

from embedkit.errors import UserError
from embedkit.evaluation.comparing.comparison import compare
from embedkit.evaluation.comparing.formatting import format_comparison
from embedkit.evaluation.query_results import QueryResult, write_query_results
from embedkit.evaluation.summary import Summary

Scores = Mapping[str, float | Mapping[str, Sequence[float]]]
"""A score of an STS task, or the scores of the queries of each part of a retrieval task."""


def write_run(folder: Path, **tasks: float | Mapping[str, Sequence[float]]) -> Path:
    """Write an evaluation whose retrieval tasks have the scores of their queries."""
    scores = {}
    for name, found in tasks.items():
        if isinstance(found, float):
            scores[name] = task_score(name, "STS", found)
            continue
        for part, values in found.items():
            results = [
                QueryResult("test", "default", f"q{number}", value, 1, [], [], [])
                for number, value in enumerate(values)
            ]
            write_query_results(folder / f"{part}.parquet", "ndcg_at_10", results)
        parts = {part: float(np.mean(values)) for part, values in found.items()}
        scores[name] = task_score(
            name,
            "Retrieval",
            float(np.mean(list(parts.values()))),
            parts=parts if len(parts) > 1 else {},
            queries={part: f"{part}.parquet" for part in found},
        )
    summary_of(scores).write(folder / "summary.json")
    return folder


OLD, NEW = [0.0, 0.5, 1.0, 1.0, 0.5, 0.0], [1.0, 0.5, 1.0, 0.5, 1.0, 0.5]


def test_a_task_has_the_paired_interval_over_its_queries(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", NQ={"NQ": OLD}, STS=0.5)
    second = write_run(tmp_path / "b", NQ={"NQ": NEW}, STS=0.4)
    (contest,) = compare([first, second], tasks=True).contests
    retrieval, sts = contest.tasks
    differences = 100 * (np.array(NEW) - OLD)
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert retrieval.over_queries == pytest.approx((differences.mean(), low, high))
    assert retrieval.over_queries is not None
    assert retrieval.over_queries.mean == pytest.approx(retrieval.difference)
    assert (retrieval.queries, sts.over_queries, sts.queries) == (6, None, None)


def test_wins_ties_and_losses_are_counted_as_printed(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", A=0.5, B=0.5, C=0.5, D=0.5)
    second = write_run(tmp_path / "b", A=0.50006, B=0.50004, C=0.49996, D=0.3)
    found = compare([first, second], tasks=True)
    (contest,) = found.contests
    assert (contest.wins, contest.ties, contest.losses) == (1, 2, 1)
    assert "b against a: 1 win, 2 ties, 1 loss" in format_comparison(found)


def test_parts_count_alike_whatever_their_numbers_of_queries(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", CQA={"one": OLD, "two": OLD * 9})
    second = write_run(tmp_path / "b", CQA={"one": NEW, "two": OLD * 9})
    (contest,) = compare([first, second], tasks=True).contests
    (task,) = contest.tasks
    assert task.over_queries is not None
    assert task.over_queries.mean == pytest.approx(task.difference)
    assert task.queries == 60


def test_a_part_of_one_query_is_why_a_task_of_many_has_no_interval(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", CQA={"one": [0.0], "two": OLD * 9}, NQ={"NQ": OLD[:4]})
    second = write_run(tmp_path / "b", CQA={"one": [1.0], "two": NEW * 9}, NQ={"NQ": NEW[:4]})
    lines = format_comparison(compare([first, second], tasks=True)).splitlines()
    (parts,) = (line for line in lines if line.split()[:1] == ["CQA"])
    (few,) = (line for line in lines if line.split()[:1] == ["NQ"])
    assert "[a part has 1 query]" in parts
    assert parts.split()[-1] == "55"
    assert "[n < 5]" in few


def test_no_results_and_other_queries_have_no_interval_and_are_named(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", NQ={"NQ": OLD}, FEVER={"FEVER": OLD})
    second = write_run(tmp_path / "b", NQ={"NQ": NEW}, FEVER={"FEVER": NEW[:5]})
    read = Summary.read(second / "summary.json")
    scores = {**read.scores, "NQ": replace(read.scores["NQ"], queries={})}
    replace(read, scores=scores).write(second / "summary.json")
    text = format_comparison(compare([first, second], tasks=True))
    assert "no results of the same single queries: NQ, FEVER." in text


def test_a_file_that_is_gone_is_named_with_the_remedy(tmp_path: Path) -> None:
    first, second = (write_run(tmp_path / name, NQ={"NQ": OLD}) for name in "ab")
    (second / "NQ.parquet").unlink()
    with pytest.raises(UserError, match=r"NQ\.parquet: is no whole Parquet file; delete .* score"):
        compare([first, second], tasks=True)
    assert compare([first, second]).tasks == 1


def test_a_group_is_a_row_with_its_spread(tmp_path: Path) -> None:
    names = "ABCDE"
    write_run(tmp_path / "base", **dict.fromkeys(names, 0.5))
    for seed, gain in enumerate((0.01, 0.02, 0.03)):
        scores = {name: 0.5 + gain + 0.01 * number for number, name in enumerate(names)}
        write_run(tmp_path / f"a_s{seed}", **scores)
    (tmp_path / "a_s1.log").touch()
    found = compare([tmp_path / "base"], group=[str(tmp_path / "a_s*")])
    base, group = found.rows
    assert (base.name, base.spread, group.name) == ("base", None, "a_s* (3 runs)")
    assert group.average == pytest.approx(54)
    assert group.spread == pytest.approx(1)
    assert group.difference is not None
    assert group.difference.mean == pytest.approx(4)
    text = format_comparison(found)
    assert "54.00* ± 1.00" in text
    assert "studentized bootstrap resamples of runs and tasks (seed 0)" in text
    assert r"\textbf{54.00} $\pm$ 1.00" in format_comparison(found, "latex")


def test_queries_of_a_group_are_means_over_its_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "base", NQ={"NQ": OLD})
    write_run(tmp_path / "a_s0", NQ={"NQ": OLD})
    write_run(tmp_path / "a_s1", NQ={"NQ": NEW})
    found = compare([tmp_path / "base"], group=[str(tmp_path / "a_s*")], tasks=True)
    (task,) = found.contests[0].tasks
    half = 50 * (np.array(NEW) - OLD)
    low, high = stats.ttest_1samp(half, 0).confidence_interval(0.95)
    assert task.over_queries == pytest.approx((half.mean(), low, high))


def test_names_are_no_markup(tmp_path: Path) -> None:
    for name in ("[ab]", "a_s1", "b_s1"):
        write_run(tmp_path / name, A=0.5)
    found = compare([tmp_path / "[ab]"], group=[str(tmp_path / "[ab]_s*")], tasks=True)
    (head,) = (line for line in format_comparison(found).splitlines() if "task" in line[:8])
    assert head.split()[2:4] == ["[ab]", "[ab]_s*"]


def test_csv_of_tasks_has_a_line_for_each_task_and_row(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", NQ={"NQ": OLD}, STS=0.5)
    second = write_run(tmp_path / "b", NQ={"NQ": NEW}, STS=0.4)
    text = format_comparison(compare([first, second], tasks=True), "csv")
    retrieval, sts = csv.DictReader(io.StringIO(text))
    assert (retrieval["first"], retrieval["second"], retrieval["task"]) == ("a", "b", "NQ")
    assert float(retrieval["difference"]) == pytest.approx(25)
    assert float(retrieval["difference_low"]) < 25 < float(retrieval["difference_high"])
    assert (sts["difference_low"], sts["queries"]) == ("", "")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("nothing*", r"nothing\*: no folder matches; give a pattern of several runs, in quotes"),
        ("a", r"only .*/a matches; give a pattern of several runs, in quotes"),
    ],
)
def test_a_pattern_of_fewer_than_two_runs_is_refused(
    pattern: str, message: str, tmp_path: Path
) -> None:
    write_run(tmp_path / "a", A=0.5)
    with pytest.raises(UserError, match=message):
        compare(group=[str(tmp_path / pattern)])


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(UserError, match="no run to compare"):
        compare()
