"""Losses, readers and poolings of other distributions, which register them as entry points."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from importlib.metadata import EntryPoint, entry_points
from operator import or_
from typing import Annotated, Any, Generic, Literal, get_origin

from pydantic import Field, GetJsonSchemaHandler, TypeAdapter, create_model

from embedkit.config import SectionT
from embedkit.errors import UserError


def names(group: str) -> list[str]:
    """Return the names that installed distributions register in ``group``."""
    return sorted(entry_points(group=group).names)


def find(group: str, name: str) -> EntryPoint | None:
    """Return the entry point registered as ``name`` in ``group``; refuse two of one name."""
    points = list(entry_points(group=group, name=name))
    if len(points) > 1:
        owners = " and ".join(_distribution(point) for point in points)
        raise UserError(f"{name}: {owners} both register it in {group}: uninstall one of them")
    return points[0] if points else None


def load(point: EntryPoint) -> Any:
    """Import and return the object that an entry point names."""
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"{point.name}: {point.value} of {_distribution(point)} cannot be loaded: {error}"
        ) from error


def identity(point: EntryPoint) -> str:
    """Return an entry point's distribution, version and qualified name, which change by release."""
    return f"{_distribution(point)} {point.value}"


def _distribution(point: EntryPoint) -> str:
    assert point.dist is not None
    return f"{point.dist.name} {point.dist.version}"


@dataclass(frozen=True, slots=True, eq=False)
class Kinds(Generic[SectionT]):
    """Section classes by the ``kind`` of their table: embedkit's and registered ones."""

    group: str
    base: type[SectionT]
    built_in: Mapping[str, type[SectionT]]
    default: str | None = None

    def resolve(self, table: Any) -> Any:
        """Validate a table as the section of its kind; return a value that is no dict unchanged."""
        if not isinstance(table, dict):
            return table
        kind = table.get("kind", self.default)
        return self._section(kind).model_validate({**table, "kind": kind})

    def __get_pydantic_json_schema__(self, _: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Describe a field annotated with the kinds as a choice of all, also of registered ones."""
        kinds = dict.fromkeys([*self.built_in, *names(self.group)])
        choice: Any = reduce(or_, map(self._tagged, kinds))
        tagged: Any = Annotated[choice, Field(discriminator="kind")]
        return handler(TypeAdapter(tagged).core_schema)

    def identity_of(self, section: SectionT) -> str:
        """Return a string that identifies the version of a section's code; "" for embedkit's."""
        if type(section) in self.built_in.values():
            return ""
        kind = getattr(section, "kind", "")
        point = find(self.group, kind)
        if point is not None and load(point) is type(section):
            return identity(point)
        given = getattr(section, "identity", None)
        if isinstance(given, str) and given:
            return given
        raise UserError(
            f"{type(section).__name__}: is not registered in {self.group} as {kind!r}, so nothing "
            "tells its versions apart: register it, or give it a string identity"
        )

    def _tagged(self, kind: str) -> type[SectionT]:
        """Return the section of a kind, with that kind as the only value of its field ``kind``."""
        section = self._section(kind)
        if get_origin(section.model_fields["kind"].annotation) is Literal:
            return section
        only: Any = (Literal[kind], kind)
        return create_model(section.__name__, __base__=section, __doc__=section.__doc__, kind=only)

    def _section(self, kind: Any) -> type[SectionT]:
        if kind in list(self.built_in):
            return self.built_in[kind]
        point = find(self.group, kind) if isinstance(kind, str) else None
        if point is None:
            known = ", ".join([*self.built_in, *names(self.group)])
            raise ValueError(
                f"kind = {kind!r}: the kinds known are {known}; others come with the distributions "
                f"that register them in {self.group}"
            )
        section = load(point)
        if isinstance(section, type) and issubclass(section, self.base):
            return section
        raise UserError(
            f"kind = {kind!r}: {point.value} of {_distribution(point)} is no subclass of "
            f"{self.base.__module__}.{self.base.__name__}"
        )
