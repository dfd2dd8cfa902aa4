"""Tasks of mteb's classes, over texts of our own."""

from collections.abc import Sequence
from pathlib import Path

from mteb.abstasks.abstask import AbsTask
from mteb.abstasks.aggregate_task_metadata import AggregateTaskMetadata
from mteb.abstasks.aggregated_task import AbsTaskAggregate
from mteb.abstasks.task_metadata import TaskType
from support.task_folders import ANIMALS, MONEY, write_json_lines, write_task

from embedkit.evaluation.task_folders.reading import read_task_folders


def two_sts_tasks(folder: Path) -> list[AbsTask]:
    """``animals`` and ``money``, of which only the second speaks of a bank."""
    for name, texts in (("animals", ANIMALS), ("money", MONEY)):
        rows = [
            {"sentence1": texts[0], "sentence2": text, "score": number}
            for number, text in enumerate(texts)
        ]
        write_task(folder / name, "sts")
        write_json_lines(folder / name / "test.jsonl", rows)
    return read_task_folders(folder)


def mean_of(
    name: str,
    tasks: Sequence[AbsTask],
    type_: TaskType = "STS",
    main_score: str = "cosine_spearman",
) -> AbsTask:
    """An aggregate, as CQADupstackRetrieval is."""
    metadata = AggregateTaskMetadata(
        name=name,
        description="a mean",
        tasks=list(tasks),
        main_score=main_score,
        type=type_,
        eval_splits=["test"],
    )
    made: AbsTask = type(name, (AbsTaskAggregate,), {"metadata": metadata})()
    return made
