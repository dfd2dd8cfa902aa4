"""``embedkit explain`` and ``embedkit schema`` print what the package says."""

import json

import pytest
from embedkit_cli.app import app
from typer.testing import CliRunner

from embedkit.api import explain, json_schema


def printed(*words: str) -> str:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_key_is_explained() -> None:
    assert printed("explain", "optim.lr") == explain("optim.lr")


def test_a_schema_is_that_of_recipes_unless_another_is_named() -> None:
    assert json.loads(printed("schema")) == json_schema("recipe")


@pytest.mark.parametrize("kind", ["recipe", "pretrain-recipe", "manifest", "text-manifest"])
def test_a_schema_is_json(kind: str) -> None:
    assert json.loads(printed("schema", kind))["$schema"].startswith("https://json-schema.org/")
