"""Writes JSON schemas of recipes and manifests, by which editors complete and check them."""

from typing import Any, Literal

from embedkit.config import Section

SchemaKind = Literal["recipe", "pretrain-recipe", "manifest", "text-manifest"]


def json_schema(kind: SchemaKind = "recipe") -> dict[str, Any]:
    """Return the JSON schema of a kind of file, with a description and default of every key."""
    # Imported here, since the command line asks for the kinds alone.
    from embedkit.data.manifests.manifest import Manifest, TextManifest
    from embedkit.recipe import PretrainRecipe, Recipe

    sections: dict[SchemaKind, type[Section]] = {
        "recipe": Recipe,
        "pretrain-recipe": PretrainRecipe,
        "manifest": Manifest,
        "text-manifest": TextManifest,
    }
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return dialect | sections[kind].model_json_schema()
