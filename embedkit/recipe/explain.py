"""Explains a key of a recipe: its meaning, and the values in the recipes of the papers."""

import difflib
import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any

from embedkit.config import find, read_toml
from embedkit.errors import UserError
from embedkit.recipe.finetune_recipe import Recipe
from embedkit.recipe.pretrain_recipe import PretrainRecipe
from embedkit.recipe.renamed_keys import RENAMED
from embedkit.recipe.training_settings import Training

PAPER_RECIPES = ("neobert-1024", "neobert-4096", "unified", "cde-stage1", "cde-stage2")
"""The shipped recipes that follow a paper; their comments say where it leaves a value open."""
_KINDS: Mapping[str, type[Training]] = {"fine-tuning": Recipe, "pretraining": PretrainRecipe}
_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
_WORDS = {
    "integer": "integer",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "array": "list",
    "object": "table",
    "null": "unset",
}

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Key:
    """A key of the recipes of one kind."""

    kind: str
    """The work that these recipes are for, with the kind of objective where there are several."""
    path: str
    schema: Schema
    description: str
    required: bool


def explain(key: str) -> str:
    """Say what a dotted key of a recipe means: its type, default, description and paper values.

    Of a table, its keys are listed. The values are those that the recipes of the papers set, with
    the comments that stand above them there.

    Raises:
        UserError: no recipe has such a key; the message offers near ones.
    """
    known: list[_Key] = []
    for kind, section in _KINDS.items():
        schema = section.model_json_schema()
        known += _keys(kind, "", schema, schema["$defs"])
    matches = [field for field in known if field.path == key]
    if not matches and key in RENAMED:
        raise UserError(f"{key}: was renamed {RENAMED[key]}")
    if not matches:
        raise UserError(f"{key}: no recipe has such a key{_near(key, known)}")
    texts: dict[str, list[str]] = {}
    for match in matches:
        texts.setdefault(_described(match, known), []).append(match.kind)
    pages = [f"{key} ({', '.join(dict.fromkeys(kinds))})\n{text}" for text, kinds in texts.items()]
    if not any(field.path.startswith(f"{key}.") for field in known):
        pages += _evidence(key)
    return "\n".join(pages)


def _keys(kind: str, path: str, schema: Schema, sections: Schema) -> Iterator[_Key]:
    """Yield the keys of a table and of the tables inside it."""
    for name, field in schema.get("properties", {}).items():
        tables = list(_tables(field, sections))
        of_table = tables[0].get("description", "") if len(tables) == 1 else ""
        description = field.get("description", of_table)
        key = _Key(kind, f"{path}{name}", field, description, name in schema.get("required", ()))
        yield key
        for table in tables:
            objective = table["properties"].get("kind", {}).get("const")
            whose = f"{kind}, {name}.kind = {objective}" if len(tables) > 1 else kind
            yield from _keys(whose, f"{key.path}.", table, sections)


def _tables(schema: Schema, sections: Schema) -> Iterator[Schema]:
    """Yield the tables that a field may hold, alone or in a list."""
    if "$ref" in schema:
        yield sections[schema["$ref"].rpartition("/")[2]]
    items = [schema["items"]] if "items" in schema else []
    for inner in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *items):
        yield from _tables(inner, sections)


def _described(key: _Key, known: list[_Key]) -> str:
    paths = dict.fromkeys(
        field.path
        for field in known
        if field.path.rpartition(".")[0] == key.path and field.kind.startswith(key.kind)
    )
    default = "required" if key.required else f"default {_toml(key.schema.get('default'))}"
    lines = [f"  {_type(key.schema)}" + ("" if paths else f", {default}")]
    if key.description:
        lines.append(textwrap.indent(textwrap.fill(key.description.replace("``", ""), 96), "  "))
    if paths:
        keys = textwrap.fill(", ".join(paths), 88, break_on_hyphens=False)
        lines.append("  keys: " + keys.replace("\n", "\n        "))
    return "\n".join(lines) + "\n"


def _type(schema: Schema) -> str:
    """Return the type of a field in words."""
    if "enum" in schema or "const" in schema:
        return " or ".join(f'"{value}"' for value in schema.get("enum", [schema.get("const")]))
    if variants := (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        return " or ".join(dict.fromkeys(map(_type, variants)))
    if schema.get("type") == "array" and "items" in schema:
        return f"list of: {_type(schema['items'])}"
    bounds = [f"{sign} {schema[name]:g}" for name, sign in _BOUNDS.items() if name in schema]
    return " ".join([_WORDS[schema.get("type", "object")], " and ".join(bounds)]).rstrip()


def _toml(value: Any) -> str:
    return "unset" if value is None else json.dumps(value, ensure_ascii=False)


def _near(key: str, known: list[_Key]) -> str:
    """Offer whole paths: those that end in the same word, else those that are spelled alike."""
    paths = sorted({field.path for field in known})
    last = key.rpartition(".")[2]
    alike = difflib.get_close_matches(key, paths, n=3)
    words = difflib.get_close_matches(last, {path.rpartition(".")[2] for path in paths}, n=2)
    same = [path for path in paths if path.rpartition(".")[2] == last]
    ends = [path for path in paths if path.rpartition(".")[2] in words]
    near = same or list(dict.fromkeys([*alike, *ends]))[:4]
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
            if comment := _comment(path.read_text(encoding="utf-8"), ".".join(tables), last):
                lines.append(textwrap.indent(textwrap.fill(comment, 92), "      "))
    return ["\n".join(["set in the recipes of the papers:", *lines, ""])] if lines else []


def _comment(text: str, table: str, key: str) -> str:
    """Return the comment right above a key; the first of the file is about the whole recipe."""
    current, comment = "", []
    for line in dropwhile(lambda line: line.startswith("#"), text.splitlines()):
        if line.startswith("#"):
            comment.append(line.removeprefix("#").strip())
            continue
        if line.startswith("["):
            current = line.strip("[] ")
        elif current == table and line.partition("=")[0].strip() == key:
            return " ".join(comment)
        comment = []
    return ""
