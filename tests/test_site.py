"""The site under docs/: it builds without a warning, and its reference has what the code has."""

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from key_reference import reference
from support.manifests import shipped_tables

import embedkit
from embedkit.config import shipped
from embedkit.data.manifests.manifest import Manifest, TextManifest, is_text
from embedkit.recipe import PretrainRecipe, Recipe

ROOT = Path(__file__).parents[1]


def keys_of(tables: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield every key of a TOML file, as the reference calls it."""
    for name, value in tables.items():
        yield f"{path}{name}"
        if isinstance(value, dict):
            yield from keys_of(value, f"{path}{name}.")
        elif isinstance(value, list):
            for each in value:
                yield from keys_of(each, f"{path}{name}[].") if isinstance(each, dict) else ()


def rows_of(page: str) -> dict[str, list[str]]:
    """Return the cells of a reference by key."""
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    return {cells[0].strip("|` "): [cell.strip(" |") for cell in cells[1:]] for cells in rows}


def test_every_key_of_a_shipped_recipe_is_in_the_reference() -> None:
    known = {"masked_lm": rows_of(reference(PretrainRecipe)), None: rows_of(reference(Recipe))}
    paths = list(shipped("recipes").rglob("*.toml"))
    assert paths
    for path in paths:
        tables = tomllib.loads(path.read_text())
        kind = "masked_lm" if tables["objective"].get("kind") == "masked_lm" else None
        assert not set(keys_of(tables)) - known[kind].keys(), path


def test_every_key_of_a_shipped_manifest_is_in_the_reference() -> None:
    pairs, text = rows_of(reference(Manifest)), rows_of(reference(TextManifest))
    for name, tables in shipped_tables():
        # A rename has columns for keys.
        keys = {key for key in keys_of(tables) if ".rename." not in key}
        assert not keys - (text if is_text(tables) else pairs).keys(), name


def test_a_key_has_its_type_default_and_meaning() -> None:
    rows = rows_of(reference(Recipe))
    assert rows["optim.lr"][:2] == ["number > 0", "required"]
    assert rows["optim.schedule"][:2] == ['`"constant"` or `"linear"` or `"cosine"`', '`"linear"`']
    assert rows["optim.betas"][:2] == ["list of numbers", "`[0.9, 0.999]`"]
    assert rows["optim.decay_until"][:2] == ["number > 0 and ≤ 1", "`1.0`"]
    assert rows["data.mix"][:2] == ["list of tables", "required"]
    assert rows["data.mix[].weight"][:2] == ["number > 0", "not set"]
    assert rows["evaluation"][:2] == ["table", "a table of defaults"]
    # The docstring under a field, of the class itself and of one that it inherits from.
    assert "epochs" in rows["epochs"][2]
    assert rows["steps"][2]


def test_kinds_of_a_table_have_headings_of_their_own() -> None:
    headings = [line for line in reference(Recipe).splitlines() if line.startswith("## ")]
    assert '## `objective` with kind = "contextual"' in headings
    assert "## `data.mix[]`" in headings


def test_the_page_of_the_api_has_all_that_the_package_offers() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    assert not [name for name in embedkit.__all__ if f":: embedkit.{name}\n" not in page]


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    strict = ["-W", "--keep-going", "-n", "-q", "-d", str(tmp_path / "doctrees")]
    command = [sys.executable, "-m", "sphinx", *strict, str(ROOT / "docs"), str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "reference" / "finetune_recipe.html").read_text()
    assert "optim.lr" in page
