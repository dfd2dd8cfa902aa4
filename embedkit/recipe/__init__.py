"""The recipe of a run: one typed, frozen, closed value, read from TOML. Imports ``config``."""

# mypy: implicit-reexport
# ruff: noqa: F401
from embedkit.recipe.contextual_config import ContextualConfig
from embedkit.recipe.dtype_settings import Dtype, DtypeSettings
from embedkit.recipe.evaluation_settings import Evaluation, ScoringSettings
from embedkit.recipe.explain import explain
from embedkit.recipe.finetune_recipe import Data, Lora, ModelSettings, Recipe, Shortcuts
from embedkit.recipe.load_recipes import (
    as_recipe,
    default_output,
    load_any_recipe,
    load_pretrain_recipe,
    load_recipe,
    shipped_recipes,
    show_recipes,
)
from embedkit.recipe.pair_objectives import (
    AnglE,
    Contrastive,
    CoSENT,
    Distill,
    InContext,
    InfoNCE,
    Needs,
    PairObjective,
)
from embedkit.recipe.pretrain_recipe import Architecture, MaskedLM, PretrainRecipe, TextData
from embedkit.recipe.training_settings import Logging, Mix, Optim, RecipeT, Training
from embedkit.recipe.validation_settings import Validation
