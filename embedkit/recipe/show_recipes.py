"""Recipes as they are resolved, and what differs between two."""

from collections.abc import Sequence

import tomli_w

from embedkit.config import differences
from embedkit.errors import UserError
from embedkit.recipe.load_recipes import load_any_recipe


def show_recipes(names: Sequence[str], overrides: Sequence[str] = ()) -> str:
    """Return a recipe as TOML with every default filled in, or the differences between two.

    Args:
        names: one or two names under ``recipes/``, or paths.
        overrides: ``dotted.key=value`` assignments, which change both.

    Raises:
        UserError: there is no such recipe, it is wrong somewhere, or there are more than two.
    """
    tables = [
        load_any_recipe(name, overrides).model_dump(mode="json", exclude_none=True)
        for name in names
    ]
    if len(tables) == 1:
        return tomli_w.dumps(tables[0])
    if len(tables) != 2:
        raise UserError(f"show takes one recipe, or two to compare, not {len(tables)}")
    return "".join(f"{line}\n" for line in differences(tables[0], tables[1]))
