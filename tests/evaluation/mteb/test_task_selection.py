from pathlib import Path

import pytest
from support.task_folders import write_task

from embedkit.errors import UserError
from embedkit.evaluation.mteb.task_selection import leaves, select_tasks


def test_the_english_benchmark_has_56_tasks_and_67_leaves() -> None:
    tasks = select_tasks("MTEB(eng, v1)")
    assert len(tasks) == 56
    assert sum(len(leaves(task)) for task in tasks) == 67
    splits = {task.metadata.name: list(task.eval_splits) for task in tasks}
    assert splits.pop("MSMARCO") == ["dev"]
    assert all(split == ["test"] for split in splits.values())


def test_a_named_task_is_the_benchmarks_own() -> None:
    counterfactual, marco = select_tasks(tasks=["AmazonCounterfactualClassification", "MSMARCO"])
    assert counterfactual.hf_subsets == ["en"]
    assert list(marco.eval_splits) == ["dev"]


def test_a_task_outside_the_benchmark_can_be_named() -> None:
    (task,) = select_tasks(tasks=["BornholmBitextMining"])
    assert task.metadata.type == "BitextMining"


def test_an_unknown_task_is_refused_with_what_is_near() -> None:
    with pytest.raises(UserError, match=r"sts17x: mteb has no such task; near: STS17"):
        select_tasks(tasks=["sts17x"])


def test_an_unknown_benchmark_is_refused_with_what_is_near() -> None:
    with pytest.raises(UserError, match=r"no such benchmark; near: MTEB\(eng, v1\)"):
        select_tasks("MTEB(eng,v1)")


def test_nothing_to_evaluate_on_is_refused() -> None:
    with pytest.raises(UserError, match="name a benchmark, tasks or folders of tasks"):
        select_tasks()


def test_two_folders_of_one_name_are_refused(tmp_path: Path) -> None:
    folders = [write_task(tmp_path / side / "mine", "sts") for side in ("a", "b")]
    with pytest.raises(UserError, match="mine: two tasks have this name; rename"):
        select_tasks(task_dirs=folders)
