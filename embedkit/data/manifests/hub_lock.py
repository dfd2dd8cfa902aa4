"""Reads and writes the lock: the commit of each data set whose manifest leaves that open."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import tomli_w
from pydantic import Field

from embedkit.config import Section, names_in, read_toml, shipped, validated
from embedkit.data.manifests.manifest import FOLDER, load_any_manifest
from embedkit.data.manifests.sources import Commit, HubSource
from embedkit.errors import DataError, UserError
from embedkit.storage.atomic import write_text


class _Lock(Section):
    commits: dict[str, Commit] = Field(default_factory=dict)
    """Commits by the ids of data sets."""


def default_path() -> Path:
    """Return the path of the lock of the shipped manifests."""
    return shipped(FOLDER) / "hub.lock.toml"


def locked(id_: str) -> str | None:
    """Return the commit that the lock has for a data set."""
    return _read(default_path()).get(id_)


def update(path: Path, ids: Iterable[str], *, upgrade: bool = False) -> dict[str, str]:
    """Add the newest commits of data sets to the lock at ``path``; return all commits in it.

    A locked commit stays, unless ``upgrade`` asks for the newest. The file is written at the end.

    Raises:
        UserError: the hub cannot be reached, or the file cannot be written.
    """
    commits = _read(path)
    commits |= {id_: newest(id_) for id_ in ids if upgrade or id_ not in commits}
    commits = dict(sorted(commits.items()))
    try:
        write_text(path, f"# Written by embedkit data lock.\n{tomli_w.dumps({'commits': commits})}")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    return commits


def lock_sources(names: Sequence[str] = (), *, upgrade: bool = False) -> dict[str, str]:
    """Pin the hub's data sets that manifests leave open at their newest commits.

    Args:
        names: names of manifests, or their paths; by default all that come with embedkit.
        upgrade: also ask for the newest commits of what is pinned already.

    Returns:
        The commit of every data set that is pinned now, by its id.

    Raises:
        UserError: there is no such manifest, the hub cannot be reached, or the file of commits
            cannot be written.
    """
    sources = [load_any_manifest(name).source for name in names or names_in(FOLDER)]
    ids = [source.id for source in sources if isinstance(source, HubSource) and not source.revision]
    remote = dict.fromkeys(id_ for id_ in ids if not Path(id_).is_dir())
    return update(default_path(), remote, upgrade=upgrade)


def newest(id_: str) -> str:
    """Return the commit that the main branch of a data set is at.

    Raises:
        DataError: the hub cannot be asked.
    """
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(id_).sha)
    # The hub's client raises errors of half a dozen libraries.
    except Exception as error:
        raise DataError(
            f"cannot ask the hub for the newest revision of {id_} ({reason(error)}): run embedkit "
            "data lock and data prepare where there is a network and bring hub.lock.toml and "
            f"$EMBEDKIT_CACHE here, or put a copy into $EMBEDKIT_HUB/{id_}"
        ) from None


def reason(error: Exception) -> str:
    """Return the first line of an error that another library raised."""
    if type(error).__name__ == "OfflineModeIsEnabled":
        return "it does not answer, or HF_HUB_OFFLINE is set"
    return (str(error) or type(error).__name__).partition("\n")[0]


def _read(path: Path) -> dict[str, str]:
    tables = read_toml(path) if path.is_file() else {}
    return dict(validated(_Lock, tables, str(path)).commits)
