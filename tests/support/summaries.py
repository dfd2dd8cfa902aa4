"""Scores and summaries that nothing has measured."""

from collections.abc import Mapping
from typing import Any

from embedkit.evaluation.summary import Summary, TaskScore


def task_score(name: str, type_: str, score: float, **more: Any) -> TaskScore:
    """A score in fp32 without prompts, but for what ``more`` says."""
    facts: dict[str, Any] = {
        "metric": "metric",
        "prompts": {},
        "prompt_origin": "none",
        "seconds": 1.0,
        "revision": "r",
        "splits": ("test",),
        "mteb_version": "2",
        "dtype": "float32",
        "max_tokens": 128,
        "datasets": {name: f"mteb/{name}"},
    }
    return TaskScore(name, type_, score=score, **{**facts, **more})


def summary_of(scores: Mapping[str, TaskScore], **more: Any) -> Summary:
    """The summary of a model called m, but for what ``more`` says."""
    facts: dict[str, Any] = {
        "model": "m",
        "identity": "i",
        "dtype": "float32",
        "tasks": {name: score.type for name, score in scores.items()},
        "failed": {},
        "versions": {"mteb": "2"},
        "revision": "r",
    }
    return Summary(scores=scores, **{**facts, **more})
