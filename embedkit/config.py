"""TOML into typed values: closed sections, one-line error messages, overrides, differences."""

import copy
import difflib
import json
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from embedkit.errors import ArgumentError, UserError


class Section(BaseModel):
    """A TOML table: immutable, strictly typed, and closed to unknown keys.

    The string under a field describes it in ``--help``, ``embedkit explain`` and JSON schemas.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


SectionT = TypeVar("SectionT", bound=Section)


def shipped(folder: str) -> Path:
    """Return the path of ``recipes`` or ``data_manifests``, in an installed wheel or a checkout."""
    installed = Path(str(resources.files("embedkit"))) / folder
    return installed if installed.is_dir() else Path(__file__).parents[1] / folder


def find(
    folder: str,
    name: str,
    known: Callable[[], Iterable[str]] | None = None,
    listed_by: str | None = None,
) -> Path:
    """Return the path of the TOML file ``name``: a path, or a name in a shipped folder.

    Args:
        folder: shipped folder, ``recipes`` or ``data_manifests``.
        name: path that ends in ``.toml``, or name under ``folder`` without ``.toml``.
        known: function that returns the names to suggest instead of an unknown one; by default all
            names in the folder.
        listed_by: command that prints the known names, if they are too many for a line.

    Raises:
        UserError: there is no such file.
    """
    if name.endswith(".toml"):
        path = Path(expand(name))
        if path.is_file():
            return path
        raise UserError(f"{name}: no such file")
    path = shipped(folder) / f"{name}.toml"
    if path.is_file():
        return path
    names = sorted(known() if known else names_in(shipped(folder)))
    near = difflib.get_close_matches(name, names, n=3)
    offers = [f"did you mean {', '.join(near)}?"] if near else []
    offers += [f"{listed_by} prints all {len(names)}"] if listed_by else []
    offered = " ".join(offers) or ", ".join(names)
    raise UserError(f"{name}: not a name under {folder}/ ({offered}); a path ends in .toml")


def names_in(folder: Path) -> list[str]:
    """Return the names of the TOML files under a shipped folder, without ``.toml``."""
    return [str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.toml")]


def expand(path: str) -> str:
    """Resolve a leading ``$EMBEDKIT_DATA`` and ``~``.

    Raises:
        UserError: the path starts with ``$EMBEDKIT_DATA`` and the variable is not set.
    """
    if path.startswith("$EMBEDKIT_DATA") and "EMBEDKIT_DATA" not in os.environ:
        raise UserError(f"{path}: set EMBEDKIT_DATA to the folder that holds the data")
    return os.path.expandvars(str(Path(path).expanduser()))


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raises:
        UserError: the file cannot be read or is not valid TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None


def validated(section: type[SectionT], tables: Mapping[str, Any], origin: str) -> SectionT:
    """Build ``section`` from ``tables``; report all mistakes in one line.

    Raises:
        UserError: the tables are not valid; the message names ``origin``, the dotted keys and what
            they should be.
    """
    try:
        return section.model_validate(tables)
    except ValidationError as error:
        mistakes = _mistakes(error, section, "key")
        lines = "; ".join(f"{where}: {what}" if where else what for where, what in mistakes)
        raise UserError(f"{origin}: {lines}") from None


def from_arguments(section: type[SectionT], arguments: Mapping[str, Any]) -> SectionT:
    """Build ``section`` from the keyword arguments of a call.

    Raises:
        ArgumentError: names the arguments that are wrong and what they should be.
    """
    try:
        return section.model_validate(arguments)
    except ValidationError as error:
        raise ArgumentError(*_mistakes(error, section, "argument")) from None


def override(tables: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Return a copy of ``tables`` after ``dotted.key=value`` assignments.

    Values are TOML or bare words. An assignment without a value, ``dotted.key=``, removes the key,
    so that its default applies.
    """
    changed = copy.deepcopy(dict(tables))
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise UserError(f"--set {assignment}: write KEY=VALUE, e.g. optim.lr=3e-5")
        _assign(changed, key.strip(), _parse(value.strip()) if value.strip() else None)
    return changed


def differences(then: Any, now: Any, key: str = "") -> list[str]:
    """Return a line ``key: then -> now`` for every leaf in which two nested tables differ."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        keys = dict.fromkeys([*then, *now])
        dotted = {name: f"{key}.{name}" if key else str(name) for name in keys}
        nested = [differences(then.get(k), now.get(k), dotted[k]) for k in keys]
        return [line for lines in nested for line in lines]
    return [] if then == now else [f"{key}: {_short(then)} -> {_short(now)}"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _mistakes(
    error: ValidationError, section: type[BaseModel], called: str
) -> list[tuple[str, str]]:
    """Return the dotted name of each wrong field, which users call a key or so, and the reason."""
    sections = list(_sections(section))
    return [_mistake(line, sections, called) for line in error.errors(include_url=False)]


def _mistake(
    error: Mapping[str, Any], sections: Iterable[type[BaseModel]], called: str
) -> tuple[str, str]:
    known = {name for section in sections for name in section.model_fields}
    unknown = [str(error["loc"][-1])] if error["type"] == "extra_forbidden" else []
    way = [str(part) for part in error["loc"]][: len(error["loc"]) - len(unknown)]
    # For a table of several kinds, pydantic adds the kind to the path of the key.
    where = ".".join([part for part in way if part not in _kinds(sections) - known] + unknown)
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, n=1)
        offer = f", did you mean {near[0]}?" if near else ""
        return where, f"there is no such {called}{offer}"
    message = str(error["msg"]).removeprefix("Value error, ")
    shown = "" if error["type"] in {"missing", "value_error"} else f" (got {error['input']!r})"
    return where, f"{message}{shown}"


def _kinds(sections: Iterable[type[BaseModel]]) -> set[str]:
    tables = [section.model_fields for section in sections]
    fields = [table["kind"] for table in tables if "kind" in table]
    return {kind for field in fields for kind in get_args(field.annotation)}


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield a section class, its subclasses if it has a ``kind``, and the classes of its fields."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        kinds = annotation.__subclasses__() if "kind" in annotation.model_fields else ()
        fields = (field.annotation for field in annotation.model_fields.values())
        inner: Iterable[Any] = (*kinds, *fields)
    else:
        inner = get_args(annotation)
    for part in inner:
        yield from _sections(part)


def _assign(tables: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        tables = tables.setdefault(parent, {})
        if not isinstance(tables, dict):
            raise UserError(f"--set {key}: {parent} is a value, not a table")
    # TOML has no null, so that an assignment without a value removes the key.
    if value is None:
        tables.pop(last, None)
    else:
        tables[last] = value


def _parse(value: str) -> Any:
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return value
