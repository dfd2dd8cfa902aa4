"""The metrics that mteb computes for each type of task, any of which a task folder may report."""

from mteb._evaluators.text.summarization_evaluator import SummarizationMetrics
from mteb.abstasks import AbsTaskRetrieval
from mteb.abstasks.classification import ClassificationMetrics
from mteb.abstasks.sts import STSMetrics

_RANKED = tuple(
    f"{name}_at_{k}"
    for name in ("ndcg", "map", "mrr", "recall", "precision", "hit_rate")
    for k in AbsTaskRetrieval.k_values
)
_SIMILARITIES = ("similarity", "cosine", "dot", "euclidean", "manhattan", "max")
METRICS = {
    "retrieval": _RANKED,
    "reranking": _RANKED,
    "sts": tuple(STSMetrics.__annotations__),
    "pair_classification": tuple(
        f"{similarity}_{name}"
        for similarity in _SIMILARITIES
        for name in ("ap", "accuracy", "f1", "precision", "recall")
    ),
    "classification": tuple(ClassificationMetrics.__annotations__),
    "clustering": ("v_measure",),
    "summarization": tuple(SummarizationMetrics.__annotations__),
}
"""Names of metrics by the type in ``task.json``."""
TWO_LABELS = ("ap", "ap_weighted")
"""Metrics of a classification that mteb computes only if there are two labels."""
