"""Writes the reference of all keys of a recipe or manifest from the sections that validate them.

A page asks for it with a comment: ``<!-- keys: embedkit.recipe.Recipe -->``. Sphinx replaces the
comment by headings and tables as it reads the page.
"""

import importlib
import inspect
import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel
from sphinx.application import Sphinx

from embedkit.recipe.extensions import Kinds

_COMMENT = re.compile(r"<!-- keys: (?P<module>[\w.]+)\.(?P<section>\w+) -->")
_BOUNDS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
_WORDS = {"string": "text", "boolean": "true or false", "integer": "integer", "number": "number"}


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the replacement of comments with Sphinx."""
    app.connect("source-read", lambda _app, _page, source: _replace_comments(source))
    return {"parallel_read_safe": True}


def reference(section: type[BaseModel]) -> str:
    """Return Markdown that describes every key of ``section`` and of the tables inside it."""
    return "\n".join(_lines(section, ""))


def _replace_comments(source: list[str]) -> None:
    source[0] = _COMMENT.sub(
        lambda comment: reference(
            getattr(importlib.import_module(comment["module"]), comment["section"])
        ),
        source[0],
    )


def _lines(section: type[BaseModel], path: str) -> Iterator[str]:
    yield from ["", "| key | type | default | meaning |", "|---|---|---|---|"]
    types = section.model_json_schema()["properties"]
    for name, field in section.model_fields.items():
        if name not in types:  # A manifest's name is that of its file.
            continue
        default = field.get_default(call_default_factory=True)
        shown = "required" if field.is_required() else _default(default)
        cells = [
            f"`{path}{name}`",
            _type(types[name]),
            shown,
            " ".join((field.description or "").split()),
        ]
        row = " | ".join(cell.replace("|", r"\|") for cell in cells)
        yield f"| {row} |"
    yield ""
    for name, field in section.model_fields.items():
        inner = list(_sections(Annotated[field.annotation, *field.metadata, None]))
        table = f"{path}{name}{'[]' if _is_list(field.annotation) else ''}"
        for each in inner:
            kind = f' with kind = "{_kind(each)}"' if len(inner) > 1 else ""
            yield from [f"## `{table}`{kind}", ""]
            if each.__doc__:
                yield inspect.cleandoc(each.__doc__)
            yield from _lines(each, f"{table}.")


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the sections that a field of this type holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    arguments = get_args(annotation)
    if kinds := [argument for argument in arguments if isinstance(argument, Kinds)]:
        yield from kinds[0].built_in.values()
        return
    for argument in arguments:
        yield from _sections(argument)


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple


def _kind(section: type[BaseModel]) -> str:
    return str(get_args(section.model_fields["kind"].annotation)[0])


def _default(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, BaseModel):
        return "a table of defaults"
    return f"`{json.dumps(value)}`"


def _type(schema: dict[str, Any]) -> str:
    """Return what a JSON schema asks for, in words of TOML."""
    if options := schema.get("anyOf") or schema.get("oneOf"):
        named = dict.fromkeys(_type(option) for option in options if option.get("type") != "null")
        return " or ".join(named)
    if literals := schema.get("enum") or ("const" in schema and [schema["const"]]):
        return " or ".join(f"`{json.dumps(literal)}`" for literal in literals)
    if "$ref" in schema:
        return "table"
    if schema["type"] == "array":
        items = [schema["items"]] if "items" in schema else schema["prefixItems"]
        words = " and ".join(dict.fromkeys(map(_type, items)))
        return "list of " + re.sub("(number|integer|table)", r"\1s", words)
    if schema["type"] == "object":
        return f"table of {_type(schema['additionalProperties'])}"
    bounds = [f"{sign} {schema[key]}" for key, sign in _BOUNDS.items() if key in schema]
    bounds += [f"matching `{schema['pattern']}`"] if "pattern" in schema else []
    return f"{_WORDS[schema['type']]} {' and '.join(bounds)}".rstrip()
