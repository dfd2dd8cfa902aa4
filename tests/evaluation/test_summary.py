from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from support.summaries import summary_of, task_score

from embedkit.evaluation.summary import Summary, comparison
from embedkit.evaluation.tables import as_text

SCORES = {"STS12": ("STS", 0.5), "STS13": ("STS", 0.7), "NQ": ("Retrieval", 0.2)}
TASKS = {"STS12": "STS", "NQ": "Retrieval", "STS13": "STS", "MSMARCO": "Retrieval"}


def summary(**scores: float) -> Summary:
    found = {
        name: task_score(name, type_, scores.get(name, score))
        for name, (type_, score) in SCORES.items()
    }
    return summary_of(found, tasks=TASKS, failed={"MSMARCO": "OSError: no"})


def test_means_are_over_the_tasks_that_have_a_score() -> None:
    assert summary().type_means == pytest.approx({"Retrieval": 0.2, "STS": 0.6})
    assert summary().mean_over_types == pytest.approx(0.4)
    assert summary().mean_over_tasks == pytest.approx(1.4 / 3)


def test_the_text_names_what_is_missing_and_why() -> None:
    text = summary().text()
    assert "3 of 4 tasks" in text
    assert "missing: MSMARCO: OSError: no" in text
    assert text.count("\n") > 7  # Seven types have a line, with a score or without.


def test_a_summary_without_scores_has_no_means() -> None:
    empty = replace(summary(), scores={})
    assert empty.mean_over_types is None
    assert empty.mean_over_tasks is None
    assert "0 of 4 tasks" in empty.text()


def test_a_summary_reads_back_as_it_was_written(tmp_path: Path) -> None:
    summary().write(tmp_path / "new" / "summary.json")
    assert Summary.read(tmp_path / "new" / "summary.json") == summary()


def test_a_comparison_shows_each_difference_and_both_means() -> None:
    lines = as_text(comparison(summary(), summary(NQ=0.26))).splitlines()
    cells = {line.split()[1]: line.split() for line in lines if line.startswith("│")}
    assert cells["NQ"][5:] == ["20.00", "│", "26.00", "│", "+6.00", "│"]
    assert cells["MSMARCO"].count("-") == 3
    types, tasks = (line.split() for line in lines if "mean over" in line)
    assert "+3.00" in types
    assert "+2.00" in tasks


def test_scores_on_other_data_are_not_subtracted() -> None:
    before, after = summary(), summary(NQ=0.26)
    other = replace(after.scores["NQ"], revision="another")
    after = replace(after, scores={**after.scores, "NQ": other})
    lines = as_text(comparison(before, after)).splitlines()
    cells = {line.split()[1]: line.split() for line in lines if line.startswith("│")}
    assert cells["NQ"][5:] == ["20.00", "│", "26.00", "│", "-", "│"]
    assert any("mean over 2 tasks" in line and "+0.00" in line for line in lines), lines


def test_the_means_of_a_comparison_are_over_common_tasks() -> None:
    before = summary()
    after = replace(before, scores={"STS12": replace(before.scores["STS12"], score=0.6)})
    text = as_text(comparison(before, after))
    assert "mean over 1 task " in text
    assert "50.00 │ 60.00" in text.splitlines()[-2]


def test_two_processes_that_write_one_file_lose_no_task(tmp_path: Path) -> None:
    path = tmp_path / "new" / "summary.json"

    def only(name: str) -> Summary:
        whole = summary()
        return replace(whole, tasks={name: "STS"}, scores={name: whole.scores["NQ"]}, failed={})

    names = [f"task {number}" for number in range(12)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda name: only(name).merge_into(path), names))
    assert Summary.read(path).scores.keys() == set(names)


def test_a_task_has_a_score_or_a_failure_whichever_is_the_later(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    summary().merge_into(path)
    later = {"MSMARCO": task_score("MSMARCO", "Retrieval", 0.3)}
    replace(summary(), scores=later, failed={"NQ": "OSError: no"}).merge_into(path)
    merged = Summary.read(path)
    assert set(merged.scores) == {"STS12", "STS13", "MSMARCO"}
    assert merged.failed == {"NQ": "OSError: no"}
