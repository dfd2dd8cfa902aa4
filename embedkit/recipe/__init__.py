"""The recipe of a run: one typed, frozen, closed value, read from TOML. Imports ``config``."""

from embedkit.recipe.contextual_config import ContextualConfig
from embedkit.recipe.explain import explain
from embedkit.recipe.finetune_recipe import (
    Data,
    Evaluation,
    Instructions,
    Lora,
    ModelSettings,
    Recipe,
)
from embedkit.recipe.load_recipes import (
    as_recipe,
    default_output,
    load_any_recipe,
    load_pretrain_recipe,
    load_recipe,
)
from embedkit.recipe.mixtures import Mix
from embedkit.recipe.pair_objectives import Contrastive, InContext, InfoNCE, Needs, PairObjective
from embedkit.recipe.pretrain_recipe import (
    Architecture,
    HeldOutLoss,
    MaskedLM,
    PretrainRecipe,
    Start,
    Text,
    TextData,
)
from embedkit.recipe.show_recipes import show_recipes
from embedkit.recipe.training_settings import Checkpoints, Logging, Optim, RecipeT, Training

__all__ = [
    "Architecture",
    "Checkpoints",
    "ContextualConfig",
    "Contrastive",
    "Data",
    "Evaluation",
    "HeldOutLoss",
    "InContext",
    "InfoNCE",
    "Instructions",
    "Logging",
    "Lora",
    "MaskedLM",
    "Mix",
    "ModelSettings",
    "Needs",
    "Optim",
    "PairObjective",
    "PretrainRecipe",
    "Recipe",
    "RecipeT",
    "Start",
    "Text",
    "TextData",
    "Training",
    "as_recipe",
    "default_output",
    "explain",
    "load_any_recipe",
    "load_pretrain_recipe",
    "load_recipe",
    "show_recipes",
]
