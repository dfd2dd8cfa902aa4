"""Writes the front matter of a model card, which the Hugging Face hub reads."""

from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from embedkit.evaluation.summary import Summary, TaskScore


def front_matter(name: str, base: str, scores: Summary | None) -> str:
    """Return YAML that says what a model is, with a ``model-index`` of its scores, if it has any.

    ``base`` is the model that training started from, which the hub accepts if it is a hub id.
    """
    measured = scores.scores.values() if scores else ()
    results = [result for score in measured for result in _results(score)]
    return ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        base_model=base if base.count("/") == 1 and not Path(base).exists() else None,
        tags=["sentence-transformers", "embedkit", *(["mteb"] if results else [])],
        model_name=name,
        eval_results=results or None,
    ).to_yaml()


def _results(score: TaskScore) -> Iterator[EvalResult]:
    """Yield the score of a task, or those of its parts, since an aggregate has no data of its own.

    Scores are times 100, as mteb writes them into cards.
    """
    values = score.parts or {score.name: score.score}
    for name, dataset in score.datasets.items():
        yield EvalResult(
            task_type=score.type,
            dataset_name=name if name == dataset else f"MTEB {name}",
            dataset_type=dataset,
            dataset_split=", ".join(score.splits),
            dataset_revision=None if score.parts else score.revision,
            metric_type=score.metric,
            metric_value=round(100 * values[name], 4),
        )
