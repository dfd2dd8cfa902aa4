"""Reads, validates and prints recipes in TOML."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from embedkit.config import differences, find, override, read_toml, validated
from embedkit.errors import UserError
from embedkit.recipe.finetune_recipe import Recipe
from embedkit.recipe.pretrain_recipe import PretrainRecipe
from embedkit.recipe.renamed_keys import with_new_names
from embedkit.recipe.training_settings import RecipeT, Training


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a fine-tuning recipe and apply ``dotted.key=value`` overrides.

    Raises:
        UserError: there is no such recipe, it is not valid, or it is a pretraining recipe.
    """
    return _checked(load_any_recipe(name, overrides), Recipe, name)


def load_pretrain_recipe(name: str, overrides: Sequence[str] = ()) -> PretrainRecipe:
    """Read a pretraining recipe and apply ``dotted.key=value`` overrides.

    Raises:
        UserError: there is no such recipe, it is not valid, or it is a fine-tuning recipe.
    """
    return _checked(load_any_recipe(name, overrides), PretrainRecipe, name)


def as_recipe(recipe: Recipe | str | Path) -> Recipe:
    """Return a fine-tuning recipe that is given as such, by its name or by its path."""
    return recipe if isinstance(recipe, Recipe) else load_recipe(str(recipe))


def load_any_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe | PretrainRecipe:
    """Read a recipe of the kind that its ``objective.kind`` says, and apply overrides.

    Raises:
        UserError: there is no such recipe, or it is not valid.
    """
    path = find("recipes", name)
    tables, remarks = with_new_names(override(read_toml(path), overrides), name)
    if remarks:
        warnings.warn(f"{name}: {'; '.join(remarks)}", stacklevel=2)
    objective = tables.get("objective")
    kind = objective.get("kind") if isinstance(objective, dict) else None
    if kind == "masked_lm":
        return validated(PretrainRecipe, tables, name)
    return validated(Recipe, tables, name)


def show_recipes(names: Sequence[str], overrides: Sequence[str] = ()) -> str:
    """Return a recipe as TOML with every default filled in, or the differences between two.

    Args:
        names: one or two names under ``recipes/``, or paths.
        overrides: ``dotted.key=value`` assignments, which change both.

    Raises:
        UserError: there is no such recipe, it is not valid, or there are more than two.
    """
    recipes = [load_any_recipe(name, overrides) for name in names]
    tables = [recipe.model_dump(mode="json", exclude_none=True) for recipe in recipes]
    if len(tables) == 1:
        return tomli_w.dumps(tables[0])
    if len(tables) != 2:
        raise UserError(f"show takes one recipe, or two to compare, not {len(tables)}")
    return "".join(f"{line}\n" for line in differences(tables[0], tables[1]))


def default_output(recipe: Training | str | Path) -> Path:
    """Return ``runs/<recipe>``, by the recipe's name under ``recipes/`` or that of its file."""
    if isinstance(recipe, Training):
        return Path("runs/run")
    name = str(recipe)
    return Path("runs") / (Path(name).stem if name.endswith(".toml") else name)


def _checked(recipe: Training, kind: type[RecipeT], name: str) -> RecipeT:
    if isinstance(recipe, kind):
        return recipe
    command = "finetune" if isinstance(recipe, Recipe) else "pretrain"
    raise UserError(f"{name}: is a recipe for embedkit {command}")
