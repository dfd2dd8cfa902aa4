"""``embedkit explain`` and ``embedkit schema`` print what the package says."""

import json

import pytest
from embedkit_cli.app import app
from typer.testing import CliRunner

from embedkit.api import explain, json_schema
from embedkit.config import names_in


def printed(*words: str) -> str:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_key_is_explained() -> None:
    assert printed("explain", "optim.lr") == explain("optim.lr")


def test_recipes_are_listed_with_what_they_are_for() -> None:
    lines = dict(line.split("\t") for line in printed("recipes").splitlines())
    assert list(lines) == names_in("recipes")
    assert lines["starter-mlm"].startswith("Pretraining in minutes on a machine without a hub")
    for name, purpose in lines.items():
        assert 10 < len(purpose) < 160, name
        assert purpose.endswith("."), name


def test_a_schema_is_that_of_recipes_unless_another_is_named() -> None:
    assert json.loads(printed("schema")) == json_schema("recipe")


@pytest.mark.parametrize("kind", ["recipe", "pretrain-recipe", "manifest", "text-manifest"])
def test_a_schema_is_json(kind: str) -> None:
    assert json.loads(printed("schema", kind))["$schema"].startswith("https://json-schema.org/")
