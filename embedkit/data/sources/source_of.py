"""Finds the source that a user names on the command line: a file, a folder or a data set."""

import re
from pathlib import Path

from embedkit.config import expand
from embedkit.data.manifests.sources import File, FilesSource, HubSource, Source
from embedkit.data.sources.folders import files_in
from embedkit.errors import DataError

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def source_of(data: str) -> Source:
    """Return what ``data`` names as the ``[source]`` of a manifest, with an absolute path.

    It is a file, a folder of files of one layout, a folder that ``datasets`` saved, or the id
    ``org/name`` of a data set on the hub. What is there on disk comes first.

    Raises:
        DataError: there is no such file or folder, or the folder holds no files of rows.
    """
    path = Path(expand(data)).absolute()
    if path.is_dir():
        files_in(path)  # raises DataError where there is nothing to read
    elif not path.is_file():
        if _HUB_ID.fullmatch(data) and not Path(data).suffix:
            return HubSource(kind="hub", id=data)
        raise DataError(
            f"{data}: no such file or folder: give a file, a folder of files, or the id org/name "
            "of a data set on the hub"
        )
    return FilesSource(kind="files", files=(File(path=str(path)),))
