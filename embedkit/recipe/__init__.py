"""The recipe of a run: one typed, frozen, closed value, read from TOML."""

from embedkit.recipe.contextual import ContextualConfig
from embedkit.recipe.finetuning import Data, Embedder, Evaluation, Lora, Mix, Recipe
from embedkit.recipe.infonce import Contrastive, InContext, InfoNCE
from embedkit.recipe.loading import load_any_recipe, load_pretrain_recipe, load_recipe
from embedkit.recipe.pretraining import (
    Architecture,
    HeldOutLoss,
    MaskedLM,
    PretrainRecipe,
    Start,
    Text,
    TextData,
)
from embedkit.recipe.training import Checkpoints, Logging, Optim, RecipeT, Training

__all__ = [
    "Architecture",
    "Checkpoints",
    "ContextualConfig",
    "Contrastive",
    "Data",
    "Embedder",
    "Evaluation",
    "HeldOutLoss",
    "InContext",
    "InfoNCE",
    "Logging",
    "Lora",
    "MaskedLM",
    "Mix",
    "Optim",
    "PretrainRecipe",
    "Recipe",
    "RecipeT",
    "Start",
    "Text",
    "TextData",
    "Training",
    "load_any_recipe",
    "load_pretrain_recipe",
    "load_recipe",
]
