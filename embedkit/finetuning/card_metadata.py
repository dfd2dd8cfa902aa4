"""Writes the front matter of a model card, which the Hugging Face hub reads."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from embedkit.data.manifests.manifest import Manifest
from embedkit.data.manifests.sources import HubSource
from embedkit.evaluation.summary import Summary, TaskScore


def front_matter(
    name: str, base: str, scores: Summary | None, manifests: Sequence[Manifest] = ()
) -> str:
    """Return YAML that says what a model is, with a ``model-index`` of its scores, if it has any.

    ``base`` is the model that training started from, which the hub accepts if it is a hub id, as
    it does the data sets of ``manifests``. The licence and the language are the publisher's to
    say.
    """
    measured = scores.scores.values() if scores else ()
    of_mteb = any(_is_of_mteb(*each) for score in measured for each in score.datasets.items())
    results = [result for score in measured for result in _results(score)]
    return ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        base_model=base if _is_hub_id(base) else None,
        tags=["sentence-transformers", "embedkit", *(["mteb"] if of_mteb else [])],
        datasets=_hub_data(manifests) or None,
        model_name=name,
        eval_results=results or None,
    ).to_yaml()


def _hub_data(manifests: Sequence[Manifest]) -> list[str]:
    """Return the ids of the hub's data sets among the sources, each once."""
    sources = (manifest.source for manifest in manifests)
    ids = [source.id for source in sources if isinstance(source, HubSource)]
    return [each for each in dict.fromkeys(ids) if _is_hub_id(each)]


def _results(score: TaskScore) -> Iterator[EvalResult]:
    """Yield the score of a task, or those of its parts, since an aggregate has no data of its own.

    Values are main scores between -1 and 1, as in mteb's ``TaskResult.get_hf_eval_results``. That
    has one for each split and subset, and here is their mean; types of tasks are mteb's own names.
    """
    values = score.parts or {score.name: score.score}
    for name, dataset in score.datasets.items():
        from_hub = _is_of_mteb(name, dataset) and name not in score.folders
        yield EvalResult(
            task_type=score.type,
            dataset_name=f"MTEB {name}" if _is_of_mteb(name, dataset) else name,
            dataset_type=dataset,
            dataset_split=", ".join(score.splits),
            # Of other data than the hub's, and of parts, the revision is a hash of embedkit's.
            dataset_revision=score.revision if from_hub and not score.parts else None,
            metric_type=score.metric,
            metric_value=values[name],
        )


def _is_of_mteb(name: str, dataset: str) -> bool:
    """Whether a task is mteb's, and not a task folder, whose data go by its own name."""
    return name != dataset


def _is_hub_id(model: str) -> bool:
    return bool(re.fullmatch(r"\w[\w.-]*/[\w.-]+", model)) and not Path(model).exists()
