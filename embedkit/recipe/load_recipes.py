"""Reads, validates and prints recipes in TOML."""

import copy
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import tomli_w

from embedkit.config import assign, differences, find, names_in, parsed, read_toml, validated
from embedkit.errors import UserError
from embedkit.recipe import other_names
from embedkit.recipe.finetune_recipe import Recipe
from embedkit.recipe.pretrain_recipe import PretrainRecipe
from embedkit.recipe.training_settings import RecipeT, Training
from embedkit.storage.relative_paths import located

_FOLDERS = (
    *("model", "model.tokenizer", "init_from", "data.batch_table"),
    *("evaluation.task_dirs", "evaluation.data_dir"),
)
_FILES = ("data.mix.manifest", "validation.records", "evaluation.instructions")
"""Keys whose values may be paths, of folders and of files."""


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a fine-tuning recipe and apply ``dotted.key=value`` overrides.

    Raises:
        UserError: there is no such recipe, it is not valid, or it is a pretraining recipe.
    """
    return _of_kind(Recipe, name, overrides)


def load_pretrain_recipe(name: str, overrides: Sequence[str] = ()) -> PretrainRecipe:
    """Read a pretraining recipe and apply ``dotted.key=value`` overrides.

    Raises:
        UserError: there is no such recipe, it is not valid, or it is a fine-tuning recipe.
    """
    return _of_kind(PretrainRecipe, name, overrides)


def as_recipe(recipe: Recipe | str | Path) -> Recipe:
    """Return a fine-tuning recipe that is given as such, by its name or by its path."""
    return recipe if isinstance(recipe, Recipe) else load_recipe(str(recipe))


def load_any_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe | PretrainRecipe:
    """Read a recipe of the kind that its ``objective.kind`` says, and apply overrides."""
    path = find("recipes", name)
    stored = read_toml(path)
    return overridden(
        _with_paths(stored, path) if name.endswith(".toml") else stored, overrides, name
    )


def overridden(
    stored: Mapping[str, Any], overrides: Sequence[str], name: str
) -> Recipe | PretrainRecipe:
    """Return the recipe of tables after ``dotted.key=value`` overrides; errors say ``name``."""
    tables, remarks = with_new_names(stored, name)
    # The ratio is of the steps that another override may set.
    for key, value in sorted(map(parsed, overrides), key=lambda pair: _is_ratio(pair[0])):
        values, remark = other_names.meaning(key, value, tables) or ({key: value}, "")
        for here, each in values.items():
            assign(tables, here, each)
        remarks += [remark] if remark else []
    _refuse_fp32_steps(tables, name)
    if remarks:
        warnings.warn(f"{name}: {'; '.join(remarks)}", stacklevel=2)
    return of_its_kind(tables, name)


def _with_paths(tables: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return a recipe whose paths start at its file, or where they lead nowhere as they are."""
    # A run stores a recipe whose paths started in the working folder, beside folders of its own.
    of_run = (path.parent / "run.json").is_file()
    # The name starter is that of a model even beside a folder that is called so.
    folders = [key for key in _FOLDERS if tables.get(key) != "starter"]
    changed = located(tables, folders, path, Path.is_dir, working_folder_first=of_run)
    return located(changed, _FILES, path, Path.is_file, working_folder_first=of_run)


def of_its_kind(tables: Mapping[str, Any], origin: str) -> Recipe | PretrainRecipe:
    """Build the recipe of ``tables`` under current names; errors name ``origin``."""
    objective = tables.get("objective")
    if isinstance(objective, dict) and objective.get("kind") == "masked_lm":
        return validated(PretrainRecipe, tables, origin)
    if tables.get("shard"):
        raise UserError(
            f"{origin}: shard: contrastive training runs replicated, since every rank needs the "
            "whole model for its share of a batch; leave it out"
        )
    return validated(Recipe, tables, origin)


def show_recipes(names: Sequence[str], overrides: Sequence[str] = ()) -> str:
    """Return a recipe as TOML with every default filled in, or the differences between two."""
    recipes = [load_any_recipe(name, overrides) for name in names]
    tables = [recipe.model_dump(mode="json", exclude_none=True) for recipe in recipes]
    if len(tables) == 1:
        return tomli_w.dumps(tables[0])
    if len(tables) != 2:
        raise UserError(f"show takes one recipe, or two to compare, not {len(tables)}")
    return "".join(f"{line}\n" for line in differences(tables[0], tables[1]))


def shipped_recipes() -> Iterator[tuple[str, str]]:
    """Yield name and purpose of each shipped recipe: the sentence at the top of its file."""
    for name in names_in("recipes"):
        lines = find("recipes", name).read_text(encoding="utf-8").splitlines()
        comment = takewhile(lambda line: line.startswith("#"), lines)
        text = " ".join(line.removeprefix("#").strip() for line in comment)
        yield name, re.split(r"(?<=\.) ", text, maxsplit=1)[0]


def default_output(recipe: Training | str | Path) -> Path:
    """Return ``runs/<recipe>``, by the recipe's name under ``recipes/`` or that of its file."""
    if isinstance(recipe, Training):
        return Path("runs/run")
    name = str(recipe)
    return Path("runs") / (Path(name).stem if name.endswith(".toml") else name)


def with_new_names(tables: Mapping[str, Any], origin: str) -> tuple[dict[str, Any], list[str]]:
    """Return the tables of a recipe under current names of keys, with a remark on each old one."""
    current = copy.deepcopy(dict(tables))
    _refuse_fp32_steps(current, origin)
    remarks = []
    for key, value in sorted(_values(current), key=lambda pair: _is_ratio(pair[0])):
        if (found := other_names.meaning(key, value, current)) is None:
            continue
        values, remark = found
        remarks.append(remark)
        assign(current, key, None)
        present = dict(_values(current))
        if both := [here for here in values if here in present]:
            told = remark if key in other_names.RENAMED else f"{key} is {both[0]}"
            raise UserError(f"{origin}: {told}, and both are set: leave {key} out")
        for here, each in values.items():
            assign(current, here, each)
    return current, remarks


def _refuse_fp32_steps(tables: dict[str, Any], origin: str) -> None:
    """Refuse a key that is gone; checkpoints of earlier versions store it unset."""
    if tables.pop("fp32_steps", None) is not None:
        raise UserError(
            f"{origin}: fp32_steps is gone, since a run has as many steps on every machine; take "
            "it out, and pass --set steps=N where a machine is slow"
        )


def _values(tables: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of nested tables that hold no table, with their values."""
    for name, value in list(tables.items()):
        if isinstance(value, dict):
            yield from _values(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _is_ratio(key: str) -> bool:
    return key.endswith("warmup_ratio")


def _of_kind(kind: type[RecipeT], name: str, overrides: Sequence[str]) -> RecipeT:
    recipe = load_any_recipe(name, overrides)
    if isinstance(recipe, kind):
        return recipe
    command = "finetune" if isinstance(recipe, Recipe) else "pretrain"
    raise UserError(f"{name}: is a recipe for embedkit {command}")
