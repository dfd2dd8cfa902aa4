"""Tasks that ranks take one by one, against the same tasks on one rank."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mteb.abstasks.abstask import AbsTask
from support.ranks import run_on_ranks
from support.task_folders import write_task

from embedkit import distributed
from embedkit.errors import UserError
from embedkit.evaluation.encoding.encoders import DistributedEncoder
from embedkit.evaluation.mteb.scoring import evaluate
from embedkit.evaluation.mteb.task_scorer import TaskScorer
from embedkit.evaluation.summary import EvaluationInterrupted, Summary
from embedkit.evaluation.task_folders.reading import read_task_folders
from embedkit.models import hub

ALONE = ("clustering", "sts", "classification", "reranking", "summarization")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Tasks by their types; only retrieval searches a corpus."""
    for type_ in ("retrieval", *ALONE):
        write_task(tmp_path / "tasks" / type_, type_)
    return tmp_path


def wait_for(path: Path) -> None:
    give_up = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < give_up, path
        time.sleep(0.01)


def score_on_ranks(
    folder: Path,
    model: Path,
    patch: pytest.MonkeyPatch,
    *,
    before: Callable[[AbsTask], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> Summary:
    """Score all tasks so that each rank has one at hand at the same time."""
    score = TaskScorer.score

    def meet(self: TaskScorer, task: AbsTask) -> Any:
        (folder / f"begun-{distributed.rank()}").touch()
        if task.metadata.type != "Retrieval":
            wait_for(folder / f"begun-{1 - distributed.rank()}")
            before(task)
        return score(self, task)

    patch.setattr(TaskScorer, "score", meet)
    encoder = DistributedEncoder(hub.load(str(model)))
    tasks, output = read_task_folders(folder / "tasks"), folder / "together"
    return encoder.run_on_main(lambda encoder: evaluate(encoder, tasks, output, stop=stop))


def files(folder: Path) -> set[Path]:
    found = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return {path for path in found if path.suffix != ".lock"}


def test_scores_and_files_are_those_of_one_rank(folder: Path, tiny_model: Path) -> None:
    alone = evaluate(
        hub.load(str(tiny_model)), read_task_folders(folder / "tasks"), folder / "alone"
    )
    run_on_ranks(2, score_all, folder, tiny_model)
    together = Summary.read(folder / "together/summary.json")
    assert list(together.scores) == list(alone.scores) == sorted(alone.tasks)
    for name, each in alone.scores.items():
        assert together.scores[name] == replace(each, seconds=together.scores[name].seconds)
    assert files(folder / "together") == files(folder / "alone")
    for settings in (folder / "together/mteb").rglob("run_settings.jsonl"):
        lines = [json.loads(line)["task"] for line in settings.read_text().splitlines()]
        assert sorted(lines) == sorted(alone.tasks)


def score_all(folder: Path, model: Path) -> None:
    taken = list[str]()
    with pytest.MonkeyPatch.context() as patch:
        summary = score_on_ranks(
            folder, model, patch, before=lambda task: taken.append(task.metadata.name)
        )
    assert summary.coverage == "6 of 6 tasks"
    assert taken
    assert distributed.sum_over_ranks(torch.tensor(len(taken))) == len(ALONE)


def test_a_task_that_fails_on_another_rank_is_reported_and_the_others_are_scored(
    folder: Path, tiny_model: Path
) -> None:
    run_on_ranks(2, fail_on_rank_1, folder, tiny_model)


def fail_on_rank_1(folder: Path, model: Path) -> None:
    failed = list[str]()

    def stumble(task: AbsTask) -> None:
        if distributed.rank() == 1:
            failed.append(task.metadata.name)
            raise MemoryError("out of memory\nand of luck")

    with pytest.MonkeyPatch.context() as patch:
        summary = score_on_ranks(folder, model, patch, before=stumble)
    if distributed.rank() == 1:
        assert summary.failed == dict.fromkeys(failed, "MemoryError: out of memory")
    assert summary.failed
    assert summary.scores
    assert summary.is_complete


def test_no_rank_begins_a_task_once_rank_0_is_asked_to_stop(folder: Path, tiny_model: Path) -> None:
    run_on_ranks(2, stop_after_one_each, folder, tiny_model)


def stop_after_one_each(folder: Path, model: Path) -> None:
    def stop() -> bool:
        # Rank 0 has begun its first task only when the other rank has begun one too.
        asked = (folder / "begun-1").exists()
        if asked:
            (folder / "asked").touch()
        return asked

    def wait_on_rank_1(_: AbsTask) -> None:
        if distributed.rank() == 1:
            wait_for(folder / "asked")

    with pytest.MonkeyPatch.context() as patch:
        summary = score_on_ranks(folder, model, patch, before=wait_on_rank_1, stop=stop)
    assert len(summary.scores) in (2, 3)
    assert "retrieval" in summary.missing
    assert not summary.failed


def test_an_interruption_keeps_what_other_ranks_have_scored(folder: Path, tiny_model: Path) -> None:
    run_on_ranks(2, interrupt_rank_0, folder, tiny_model)


def interrupt_rank_0(folder: Path, model: Path) -> None:
    results = folder / "together/mteb"

    def interrupt(_: AbsTask) -> None:
        if distributed.is_main():
            wait_for(folder / "scored")
            raise KeyboardInterrupt
        if list(results.rglob("run_settings.jsonl")):
            (folder / "scored").touch()

    with pytest.MonkeyPatch.context() as patch:
        if not distributed.is_main():
            with suppress(RuntimeError):  # Rank 0 leaves the group.
                score_on_ranks(folder, model, patch, before=interrupt)
            return
        with pytest.raises(EvaluationInterrupted) as stopped:
            score_on_ranks(folder, model, patch, before=interrupt)
    summary = stopped.value.summary
    assert summary.scores
    assert "retrieval" in summary.missing
    assert Summary.read(folder / "together/summary.json").scores == summary.scores


def test_a_mistake_of_the_user_ends_all_ranks(folder: Path, tiny_model: Path) -> None:
    run_on_ranks(2, refuse_the_summary, folder, tiny_model)


def refuse_the_summary(folder: Path, model: Path) -> None:
    def refuse(*_: object) -> None:
        raise UserError("is no summary")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Summary, "merge_into", refuse)
        with pytest.raises(UserError, match="is no summary"):
            score_on_ranks(folder, model, patch)
    assert distributed.helpers() == 0
