from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pytest
from datasets import Dataset
from support.task_folders import write_task

from embedkit.evaluation.mteb.plain_labels import plain_labels
from embedkit.evaluation.task_folders.reading import read_task_folders

LABELS = Dataset.from_dict({"label": [0, 1, 1, 0, 2, 2]})["label"]
PREDICTED = np.array([0, 1, 0, 0, 2, 1])


def test_metrics_are_the_same_and_read_the_labels_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task: Any
    (task,) = read_task_folders(write_task(tmp_path / "mine", "classification"))
    given: list[Any] = []
    score = task._calculate_scores
    expected = score(LABELS, PREDICTED)

    def noted(labels: Any, predicted: Any) -> Any:
        given.append(labels)
        return score(labels, predicted)

    monkeypatch.setattr(type(task), "_calculate_scores", staticmethod(noted))
    with plain_labels(task):
        assert task._calculate_scores(LABELS, PREDICTED) == expected
    assert given == [[0, 1, 1, 0, 2, 2]]


def test_mtebs_own_object_is_left_as_it_was() -> None:
    for name in ("Banking77Classification", "STS12"):
        task = mteb.get_task(name)
        before = dict(vars(task))
        with plain_labels(task):
            pass
        assert vars(task) == before
