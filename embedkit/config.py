"""TOML into typed values: closed sections, one-line error messages, overrides, differences."""

import difflib
import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
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
    installed = Path(__file__).parent / folder
    return installed if installed.is_dir() else Path(__file__).parents[1] / folder


def find(folder: str, name: str, listed_by: str | None = None) -> Path:
    """Return the path of a recipe or manifest.

    Args:
        folder: shipped folder, ``recipes`` or ``data_manifests``.
        name: path that ends in ``.toml``, or name under ``folder`` without ``.toml``.
        listed_by: command that prints the names, if they are too many for a line.

    Raises:
        UserError: there is no such file.
    """
    is_path = name.endswith(".toml")
    path = Path(expand(name)) if is_path else shipped(folder) / f"{name}.toml"
    if path.is_file():
        return path
    if is_path:
        raise UserError(f"{name}: no such file")
    names = names_in(folder)
    near = difflib.get_close_matches(name, names, n=3)
    offers = [f"did you mean {', '.join(near)}?"] if near else []
    offers += [f"{listed_by} prints all {len(names)}"] if listed_by else []
    offered = " ".join(offers) or ", ".join(names)
    raise UserError(f"{name}: not a name under {folder}/ ({offered}); a path ends in .toml")


def names_in(folder: str) -> list[str]:
    """Return the names of all recipes or manifests in a shipped folder, in order."""
    root = shipped(folder)
    names = {str(path.relative_to(root).with_suffix("")) for path in root.rglob("*.toml")}
    # Two files among the manifests hold the commits of hub data sets, and the paper's instructions.
    return sorted(names - {"hub.lock", "instructions"})


def expand(path: str) -> str:
    """Resolve a leading ``~`` or ``$EMBEDKIT_DATA``, which then has to be set."""
    if path.startswith("$EMBEDKIT_DATA") and "EMBEDKIT_DATA" not in os.environ:
        raise UserError(f"{path}: set EMBEDKIT_DATA to the folder that holds the data")
    return os.path.expandvars(str(Path(path).expanduser()))


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file; raise ``UserError`` if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None


def validated(section: type[SectionT], tables: Mapping[str, Any], origin: str) -> SectionT:
    """Build ``section`` from ``tables``.

    Raises:
        UserError: names ``origin``, all keys that are wrong and what they should be, in one line.
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


def parsed(assignment: str) -> tuple[str, Any]:
    """Return key and value of ``dotted.key=value``, whose value is TOML or a bare word.

    The value of ``dotted.key=`` is ``None``.
    """
    key, equals, value = (word.strip() for word in assignment.partition("="))
    if not equals:
        raise UserError(f"--set {assignment}: write KEY=VALUE, e.g. optim.lr=3e-5")
    if not value:
        return key, None
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def assign(tables: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key of nested tables; ``None``, which TOML has not, removes it."""
    *parents, last = key.split(".")
    table = tables
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise UserError(f"--set {key}: {parent} is a value, not a table")
    if value is None:
        table.pop(last, None)
    else:
        table[last] = value


def differences(then: Any, now: Any, key: str = "") -> list[str]:
    """Return a line ``key: then -> now`` for every leaf in which two nested tables differ."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        prefix = f"{key}." if key else ""
        names = dict.fromkeys([*then, *now])
        nested = [differences(then.get(n), now.get(n), f"{prefix}{n}") for n in names]
        return [line for lines in nested for line in lines]
    if then == now:
        return []
    texts = map(json.dumps, (then, now))
    shown = [text if len(text) <= 60 else f"{text[:57]}..." for text in texts]
    return [f"{key}: {' -> '.join(shown)}"]


def near_keys(key: str, known: Iterable[str], n: int = 3) -> list[str]:
    """Return up to ``n`` dotted keys that ``key`` may stand for, the most alike first.

    They end in the same word, or else in a word that is spelled like it.
    """
    paths = dict.fromkeys(known)
    by_word: dict[str, list[str]] = {}
    for path in paths:
        by_word.setdefault(path.rpartition(".")[2], []).append(path)
    last = key.rpartition(".")[2]
    words = [last] if last in by_word else difflib.get_close_matches(last, by_word, n=1)
    ends = [path for word in words for path in by_word[word]]
    if not ends:
        return difflib.get_close_matches(key, paths, n=1)
    return difflib.get_close_matches(key, ends, n=n, cutoff=0.0)


def _paths(annotation: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of a section class, and of the sections inside it."""
    inner: Iterable[Any] = get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield f"{prefix}{name}"
            yield from _paths(field.annotation, f"{prefix}{name}.")
        inner = annotation.__subclasses__() if "kind" in annotation.model_fields else ()
    for part in inner:
        yield from _paths(part, prefix)


def _mistakes(error: ValidationError, section: type[Section], called: str) -> list[tuple[str, str]]:
    """Return the dotted name of each wrong field, which users call a key or so, and the reason."""
    tables = [inner.model_fields for inner in _sections(section)]
    known = {name for table in tables for name in table}
    # For a table of several kinds, pydantic adds the kind to the path of the key.
    kinds = {k for table in tables if "kind" in table for k in get_args(table["kind"].annotation)}
    mistakes = []
    lines = error.errors(include_url=False)
    for line in lines:
        # A list is empty for pydantic if all of its elements are wrong, which say so themselves.
        depth = len(line["loc"])
        elements = [each for each in lines if each["loc"][:depth] == line["loc"]]
        if line["type"] == "too_short" and len(elements) > 1:
            continue
        path = [str(part) for part in line["loc"]]
        unknown = [path.pop()] if line["type"] == "extra_forbidden" else []
        where = ".".join([part for part in path if part in known or part not in kinds] + unknown)
        if unknown:
            # The key may be that of another kind of table, which is no help here.
            near = near_keys(where, [key for key in _paths(section) if key != where])
            what = f"there is no such {called}"
            what += f", did you mean {' or '.join(near)}?" if near else ""
        else:
            what = line["msg"].removeprefix("Value error, ")
            if line["type"] not in {"missing", "value_error"}:
                what += f" (got {line['input']!r})"
        mistakes.append((where, what))
    return mistakes


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield a section class, its subclasses if it has a ``kind``, and the classes of its fields."""
    inner: Iterable[Any] = get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        fields = annotation.model_fields
        inner = [field.annotation for field in fields.values()]
        inner += annotation.__subclasses__() if "kind" in fields else []
    for part in inner:
        yield from _sections(part)
