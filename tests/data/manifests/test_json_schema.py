"""The schemas that editors use, against every file that ships."""

from typing import Any

import pytest
from support.json_schema import violations
from support.manifests import shipped_tables

from embedkit.config import names_in, read_toml, shipped
from embedkit.data.manifests.json_schema import SchemaKind, json_schema
from embedkit.data.manifests.manifest import is_text

RECIPES = names_in("recipes")
MANIFESTS = dict(shipped_tables())


def wrong(tables: dict[str, Any], kind: SchemaKind) -> list[str]:
    schema = json_schema(kind)
    return violations(tables, schema, schema)


def recipe(name: str) -> tuple[dict[str, Any], SchemaKind]:
    tables = read_toml(shipped("recipes") / f"{name}.toml")
    pretraining = tables.get("objective", {}).get("kind") == "masked_lm"
    return tables, "pretrain-recipe" if pretraining else "recipe"


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_fits_its_schema_and_not_the_other(name: str) -> None:
    tables, kind = recipe(name)
    assert wrong(tables, kind) == []
    assert wrong(tables, "recipe" if kind == "pretrain-recipe" else "pretrain-recipe")


def test_every_manifest_fits_its_schema() -> None:
    assert len(MANIFESTS) > 100
    for name, tables in MANIFESTS.items():
        assert wrong(tables, "text-manifest" if is_text(tables) else "manifest") == [], name


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"stepz": 1}, ".stepz: is no key"),
        ({"steps": 0}, ".steps: 0 against 0"),
        ({"optim": {"lr": "high"}}, ".optim.lr: 'high' is not number"),
        ({"optim": {}}, ".optim.lr: is missing"),
        ({"optim": {"lr": 1e-3, "schedule": "wsd"}}, ".optim.schedule: 'wsd' is not in"),
        ({"objective": {"kind": "contextual", "temprature": 1}}, ".objective.temprature: is no"),
    ],
)
def test_a_mistake_in_a_recipe_is_found(change: dict[str, Any], told: str) -> None:
    tables, kind = recipe("starter")
    lines = wrong({**tables, **change}, kind)
    assert any(line.startswith(told) for line in lines), lines


def test_one_column_may_stand_for_a_list_of_one() -> None:
    tables = {"source": {"kind": "files", "files": [{"path": "a.jsonl"}]}}
    assert wrong({**tables, "columns": {"query": "title"}}, "manifest") == []
    assert wrong({**tables, "columns": {"query": ["title", "body"]}}, "manifest") == []
    assert wrong({**tables, "columns": {"query": 3}}, "manifest")


def test_the_schema_has_defaults_and_a_description_for_every_key() -> None:
    for kind in ("recipe", "pretrain-recipe", "manifest", "text-manifest"):
        schema = json_schema(kind)
        assert schema["title"]
        sections = {"": schema} | schema["$defs"]
        # A kind is told by its values, a table by its own description. Those of the objectives are
        # not looked at here.
        bare = [
            f"{name}.{key}"
            for name, section in sections.items()
            if name not in ("Contrastive", "InContext", "CoSENT", "AnglE", "Distill")
            for key, field in section.get("properties", {}).items()
            if key != "kind" and not {"description", "$ref"} & field.keys()
        ]
        assert not bare, kind
    assert json_schema("recipe")["$defs"]["Optim"]["properties"]["weight_decay"]["default"] == 0.01
