"""embedkit: from raw text to a measured embedding model."""

# ruff: noqa: F403, F405
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embedkit.api import *

__all__ = [
    "ArgumentError",
    "BatchTable",
    "ClusteringSettings",
    "ComparisonSettings",
    "DataError",
    "EvaluationSettings",
    "FailuresSettings",
    "Interrupted",
    "MiningSettings",
    "PerplexitySettings",
    "PretrainRecipe",
    "Recipe",
    "Records",
    "Texts",
    "UserError",
    "blend",
    "cluster",
    "compare",
    "deploy_check",
    "estimate",
    "evaluate",
    "evaluate_perplexity",
    "export",
    "failures",
    "finetune",
    "format_comparison",
    "format_failures",
    "init",
    "inspect",
    "load",
    "load_pretrain_recipe",
    "load_recipe",
    "mine",
    "pretrain",
    "texts_of_step",
]


def __getattr__(name: str) -> Any:
    # The API is imported when a name is first used, since pydantic and torch take seconds.
    if name not in __all__:
        raise AttributeError(f"module 'embedkit' has no attribute {name!r}")
    return getattr(importlib.import_module("embedkit.api"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
