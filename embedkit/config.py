"""TOML in, typed values out: closed sections, one-line mistakes, overrides, differences."""

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
    """The folder ``recipes`` or ``data_manifests``, in a wheel or in a checkout."""
    installed = Path(str(resources.files("embedkit"))) / folder
    return installed if installed.is_dir() else Path(__file__).parents[1] / folder


def find(
    folder: str,
    name: str,
    known: Callable[[], Iterable[str]] | None = None,
    listed_by: str | None = None,
) -> Path:
    """The TOML file called ``name``: a path, or a name under a shipped folder without ``.toml``.

    ``known`` are the names to offer in place of an unknown one, by default all of the folder, and
    ``listed_by`` is the command that prints them where they are too many for a line.
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
    """The tables of a TOML file; what is wrong with it is one line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None


def validated(section: type[SectionT], tables: Mapping[str, Any], origin: str) -> SectionT:
    """Build ``section`` from ``tables``; every mistake in them becomes one line.

    Raises:
        UserError: names ``origin``, the dotted keys and what they should be.
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
    """``tables`` after ``dotted.key=value`` assignments; values are TOML or bare words.

    Without a value, ``dotted.key=``, the key is taken out, and its default holds.
    """
    changed = copy.deepcopy(dict(tables))
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise UserError(f"--set {assignment}: write KEY=VALUE, e.g. optim.lr=3e-5")
        _assign(changed, key.strip(), _parse(value.strip()) if value.strip() else None)
    return changed


def differences(then: Any, now: Any, key: str = "") -> list[str]:
    """``key: then -> now`` for every leaf of two nested tables that differs."""
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
    return [_mistake(each, sections, called) for each in error.errors(include_url=False)]


def _mistake(
    error: Mapping[str, Any], sections: Iterable[type[BaseModel]], called: str
) -> tuple[str, str]:
    known = {name for each in sections for name in each.model_fields}
    unknown = [str(error["loc"][-1])] if error["type"] == "extra_forbidden" else []
    way = [str(part) for part in error["loc"]][: len(error["loc"]) - len(unknown)]
    # Where a table is of several kinds, pydantic names the kind besides.
    where = ".".join([part for part in way if part not in _kinds(sections) - known] + unknown)
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, n=1)
        offer = f", did you mean {near[0]}?" if near else ""
        return where, f"there is no such {called}{offer}"
    message = str(error["msg"]).removeprefix("Value error, ")
    shown = "" if error["type"] in {"missing", "value_error"} else f" (got {error['input']!r})"
    return where, f"{message}{shown}"


def _kinds(sections: Iterable[type[BaseModel]]) -> set[str]:
    fields = [each.model_fields["kind"] for each in sections if "kind" in each.model_fields]
    return {kind for field in fields for kind in get_args(field.annotation)}


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """A section, those that its ``kind`` chooses among, and those that fields hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        kinds = annotation.__subclasses__() if "kind" in annotation.model_fields else ()
        fields = (each.annotation for each in annotation.model_fields.values())
        inner: Iterable[Any] = (*kinds, *fields)
    else:
        inner = get_args(annotation)
    for each in inner:
        yield from _sections(each)


def _assign(tables: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        tables = tables.setdefault(parent, {})
        if not isinstance(tables, dict):
            raise UserError(f"--set {key}: {parent} is a value, not a table")
    # TOML has no null.
    if value is None:
        tables.pop(last, None)
    else:
        tables[last] = value


def _parse(value: str) -> Any:
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return value
