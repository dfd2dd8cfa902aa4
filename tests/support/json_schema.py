"""A small checker of JSON schemas, as far as pydantic writes them."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": (list, tuple),
    "object": dict,
    "null": type(None),
}
_SAID = {"$defs", "$schema", "title", "description", "default", "discriminator", "examples"}
"""Keywords that check nothing."""


def violations(value: Any, schema: Schema, root: Schema, path: str = "") -> list[str]:
    """Return a line for every place where ``value`` is not as ``schema`` says."""
    if unknown := schema.keys() - _CHECKS.keys() - _SAID:
        raise NotImplementedError(f"{path}: keywords {', '.join(sorted(unknown))}")
    return [
        line
        for keyword, expected in schema.items()
        if keyword in _CHECKS
        for line in _CHECKS[keyword](value, expected, schema, root, path)
    ]


def _ref(value: Any, name: str, _schema: Schema, root: Schema, path: str) -> list[str]:
    return violations(value, root["$defs"][name.removeprefix("#/$defs/")], root, path)


def _type(value: Any, name: str, _schema: Schema, _root: Schema, path: str) -> Iterator[str]:
    mistaken = isinstance(value, bool) and name != "boolean"
    if mistaken or not isinstance(value, _TYPES[name]):
        yield f"{path}: {value!r} is not {name}"


def _enum(value: Any, choices: list[Any], _schema: Schema, _root: Schema, path: str) -> list[str]:
    return [] if value in choices else [f"{path}: {value!r} is not in {choices}"]


def _const(value: Any, only: Any, _schema: Schema, _root: Schema, path: str) -> list[str]:
    return [] if value == only else [f"{path}: {value!r} is not {only!r}"]


def _any_of(
    value: Any, variants: list[Schema], _schema: Schema, root: Schema, path: str
) -> list[str]:
    found = [violations(value, each, root, path) for each in variants]
    return [] if any(not each for each in found) else [line for each in found for line in each]


def _one_of(
    value: Any, variants: list[Schema], schema: Schema, root: Schema, path: str
) -> list[str]:
    fitting = sum(not violations(value, each, root, path) for each in variants)
    if fitting > 1:
        return [f"{path}: fits {fitting} variants"]
    return _any_of(value, variants, schema, root, path)


def _properties(
    value: Any, fields: Mapping[str, Schema], _schema: Schema, root: Schema, path: str
) -> list[str]:
    given = value if isinstance(value, dict) else {}
    return [
        line
        for name in given.keys() & fields.keys()
        for line in violations(given[name], fields[name], root, f"{path}.{name}")
    ]


def _additional(
    value: Any, allowed: bool | Schema, schema: Schema, root: Schema, path: str
) -> list[str]:
    more = value.keys() - schema.get("properties", {}).keys() if isinstance(value, dict) else ()
    if isinstance(allowed, bool):
        return [] if allowed else [f"{path}.{name}: is no key" for name in more]
    return [line for name in more for line in violations(value[name], allowed, root, path)]


def _required(value: Any, names: list[str], _schema: Schema, _root: Schema, path: str) -> list[str]:
    given = value if isinstance(value, dict) else dict.fromkeys(names)
    return [f"{path}.{name}: is missing" for name in names if name not in given]


def _items(value: Any, each: Schema, schema: Schema, root: Schema, path: str) -> list[str]:
    rest = value[len(schema.get("prefixItems", ())) :] if isinstance(value, list | tuple) else ()
    return [line for item in rest for line in violations(item, each, root, f"{path}[]")]


def _prefix_items(
    value: Any, schemas: list[Schema], _schema: Schema, root: Schema, path: str
) -> list[str]:
    pairs = zip(value, schemas, strict=False) if isinstance(value, list | tuple) else ()
    return [line for item, each in pairs for line in violations(item, each, root, f"{path}[]")]


def _bound(holds: Any) -> Any:
    def check(value: Any, bound: Any, _schema: Schema, _root: Schema, path: str) -> list[str]:
        applies = isinstance(value, int | float) and not isinstance(value, bool)
        return [f"{path}: {value} against {bound}"] if applies and not holds(value, bound) else []

    return check


def _length(holds: Any, *kinds: type) -> Any:
    def check(value: Any, bound: int, _schema: Schema, _root: Schema, path: str) -> list[str]:
        applies = isinstance(value, kinds)
        return [f"{path}: {len(value)} long"] if applies and not holds(len(value), bound) else []

    return check


def _pattern(value: Any, pattern: str, _schema: Schema, _root: Schema, path: str) -> list[str]:
    wrong = isinstance(value, str) and not re.search(pattern, value)
    return [f"{path}: {value!r} against {pattern}"] if wrong else []


_CHECKS: Mapping[str, Any] = {
    "$ref": _ref,
    "additionalProperties": _additional,
    "anyOf": _any_of,
    "const": _const,
    "enum": _enum,
    "exclusiveMaximum": _bound(lambda value, bound: value < bound),
    "exclusiveMinimum": _bound(lambda value, bound: value > bound),
    "items": _items,
    "maxItems": _length(lambda size, bound: size <= bound, list, tuple),
    "maximum": _bound(lambda value, bound: value <= bound),
    "minItems": _length(lambda size, bound: size >= bound, list, tuple),
    "minLength": _length(lambda size, bound: size >= bound, str),
    "minimum": _bound(lambda value, bound: value >= bound),
    "oneOf": _one_of,
    "pattern": _pattern,
    "prefixItems": _prefix_items,
    "properties": _properties,
    "required": _required,
    "type": _type,
}
