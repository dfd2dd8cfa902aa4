"""embedkit: from raw text to a measured embedding model."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embedkit.data.records import Records
    from embedkit.errors import DataError, UserError
    from embedkit.recipe import Recipe, load_recipe
    from embedkit.runs import evaluate, finetune, load

__all__ = [
    "DataError",
    "Recipe",
    "Records",
    "UserError",
    "evaluate",
    "finetune",
    "load",
    "load_recipe",
]

_HOMES = {
    "DataError": "errors",
    "Recipe": "recipe",
    "Records": "data.records",
    "UserError": "errors",
    "evaluate": "runs",
    "finetune": "runs",
    "load": "runs",
    "load_recipe": "recipe",
}


def __getattr__(name: str) -> Any:
    # Loaded when first asked for: torch alone takes seconds to import.
    if name not in _HOMES:
        raise AttributeError(f"module 'embedkit' has no attribute {name!r}")
    return getattr(importlib.import_module(f"embedkit.{_HOMES[name]}"), name)


# Makes NeoBERT known to transformers. The command, whose help is to come at once, does without:
# what needs a model there imports it.
if "embedkit_cli" not in sys.modules:
    importlib.import_module("embedkit.models.neobert")
