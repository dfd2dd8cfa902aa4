"""Explains a key of a recipe: its meaning, and the values in the recipes of the papers."""

import json
import textwrap
from collections.abc import Iterator, Mapping
from itertools import dropwhile
from typing import Any

from embedkit.config import find, near_keys, read_toml
from embedkit.errors import UserError
from embedkit.recipe.finetune_recipe import Recipe
from embedkit.recipe.other_names import RENAMED, SAME
from embedkit.recipe.pretrain_recipe import PretrainRecipe

PAPER_RECIPES = ("neobert-1024", "neobert-4096", "unified", "cde-stage1", "cde-stage2")
"""The shipped recipes that follow a paper; their comments say where it leaves a value open."""
_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
_WORDS = {
    "string": "text",
    "boolean": "true or false",
    "array": "list",
    "null": "unset",
    "object": "table",
}

Schema = Mapping[str, Any]
Key = tuple[str, str, str]
"""Dotted path of a key, kind of the recipes that have it, and description."""


def explain(key: str) -> str:
    """Say what a dotted key of a recipe means: its type, default, description and paper values.

    Of a table, its keys are listed. The values are those that the recipes of the papers set, with
    the comments that stand above them there.

    Raises:
        UserError: no recipe has such a key; the message offers near ones.
    """
    known: list[Key] = []
    for kind, recipe in (("fine-tuning", Recipe), ("pretraining", PretrainRecipe)):
        schema = recipe.model_json_schema()
        known += _keys(kind, schema, schema["$defs"])
    paths = sorted({path for path, _, _ in known})
    kinds_by_text: dict[str, list[str]] = {}
    for path, kind, text in known:
        if path == key:
            kinds_by_text.setdefault(text, []).append(kind)
    if not kinds_by_text and key in RENAMED:
        raise UserError(f"{key}: was renamed {RENAMED[key]}")
    if not kinds_by_text and key in SAME:
        raise UserError(f"{key}: is {SAME[key]} here")
    if not kinds_by_text:
        raise UserError(f"{key}: no recipe has such a key{_near(key, paths)}")
    pages = []
    for text, kinds in kinds_by_text.items():
        pages.append(f"{key} ({', '.join(dict.fromkeys(kinds))})\n{text}\n")
    if not any(path.startswith(f"{key}.") for path in paths):
        pages += _evidence(key)
    return "\n".join(pages)


def _keys(kind: str, table: Schema, sections: Schema, prefix: str = "") -> Iterator[Key]:
    """Yield the keys of a table and of the tables inside it."""
    for name, field in table["properties"].items():
        path = f"{prefix}{name}"
        tables = list(_tables(field, sections))
        keys = dict.fromkeys(f"{path}.{key}" for inner in tables for key in inner["properties"])
        described = {**tables[0], **field} if len(tables) == 1 else field
        lines = [_type(field)]
        if not keys:
            required = name in table.get("required", ())
            lines[0] += ", required" if required else f", default {_toml(field.get('default'))}"
        if description := described.get("description"):
            lines.append(textwrap.fill(description.replace("``", ""), 96))
        if keys:
            listed = f"keys: {', '.join(keys)}"
            lines.append(textwrap.fill(listed, 94, subsequent_indent=" " * 6))
        yield path, kind, textwrap.indent("\n".join(lines), "  ")
        for inner in tables:
            objective = inner["properties"].get("kind", {}).get("const")
            whose = f"{kind}, {name}.kind = {objective}" if len(tables) > 1 else kind
            yield from _keys(whose, inner, sections, f"{path}.")


def _tables(schema: Schema, sections: Schema) -> Iterator[Schema]:
    """Yield the tables that a field may hold, alone or in a list."""
    if "$ref" in schema:
        yield sections[schema["$ref"].rpartition("/")[2]]
    items = [schema["items"]] if "items" in schema else []
    for inner in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *items):
        yield from _tables(inner, sections)


def _type(schema: Schema) -> str:
    """Return the type of a field in words."""
    if "enum" in schema or "const" in schema:
        return " or ".join(f'"{value}"' for value in schema.get("enum", [schema.get("const")]))
    if variants := (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        return " or ".join(dict.fromkeys(map(_type, variants)))
    if schema.get("type") == "array" and "items" in schema:
        return f"list of: {_type(schema['items'])}"
    bounds = [f"{sign} {schema[name]:g}" for name, sign in _BOUNDS.items() if name in schema]
    type_ = schema.get("type", "object")
    return f"{_WORDS.get(type_, type_)} {' and '.join(bounds)}".rstrip()


def _toml(value: Any) -> str:
    return "unset" if value is None else json.dumps(value, ensure_ascii=False)


def _near(key: str, paths: list[str]) -> str:
    near = near_keys(key, paths)
    return f", did you mean {' or '.join(near)}?" if near else "; embedkit show prints a recipe"


def _evidence(key: str) -> list[str]:
    """Return a page with the value of ``key`` in each recipe of a paper that sets it, if any."""
    lines = []
    *tables, last = key.split(".")
    for name in PAPER_RECIPES:
        path = find("recipes", name)
        table: Any = read_toml(path)
        for part in tables:
            table = table.get(part, {})
        if last in table:
            lines.append(f"  {name}: {_toml(table[last])}")
            if comment := _comments(path.read_text(encoding="utf-8")).get(key):
                lines.append(textwrap.indent(textwrap.fill(comment, 92), "      "))
    return ["\n".join(["set in the recipes of the papers:", *lines, ""])] if lines else []


def _comments(text: str) -> dict[str, str]:
    """Return the comment right above each key; the first of the file is about the whole recipe."""
    table, comment, comments = "", [], {}
    for line in dropwhile(lambda line: line.startswith("#"), text.splitlines()):
        if line.startswith("#"):
            comment.append(line.removeprefix("#").strip())
            continue
        if line.startswith("["):
            table = line.strip("[] ") + "."
        comments[table + line.partition("=")[0].strip()] = " ".join(comment)
        comment = []
    return comments
