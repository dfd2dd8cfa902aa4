"""embedkit: from raw text to a measured embedding model."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embedkit.api import cluster, evaluate, finetune, pretrain
    from embedkit.data.batch_table import BatchTable
    from embedkit.data.pairs.records import Records
    from embedkit.data.text.texts import Texts
    from embedkit.errors import DataError, UserError
    from embedkit.mining.mine_source import mine
    from embedkit.models.export import export
    from embedkit.models.load import load
    from embedkit.recipe import PretrainRecipe, Recipe, load_pretrain_recipe, load_recipe

__all__ = [
    "BatchTable",
    "DataError",
    "PretrainRecipe",
    "Recipe",
    "Records",
    "Texts",
    "UserError",
    "cluster",
    "evaluate",
    "export",
    "finetune",
    "load",
    "load_pretrain_recipe",
    "load_recipe",
    "mine",
    "pretrain",
]

_HOMES = {
    "BatchTable": "data.batch_table",
    "DataError": "errors",
    "PretrainRecipe": "recipe",
    "Recipe": "recipe",
    "Records": "data.pairs.records",
    "Texts": "data.text.texts",
    "UserError": "errors",
    "cluster": "api",
    "evaluate": "api",
    "export": "models.export",
    "finetune": "api",
    "load": "models.load",
    "load_pretrain_recipe": "recipe",
    "load_recipe": "recipe",
    "mine": "mining.mine_source",
    "pretrain": "api",
}


def __getattr__(name: str) -> Any:
    # Loaded when first asked for: torch alone takes seconds to import.
    if name not in _HOMES:
        raise AttributeError(f"module 'embedkit' has no attribute {name!r}")
    return getattr(importlib.import_module(f"embedkit.{_HOMES[name]}"), name)
