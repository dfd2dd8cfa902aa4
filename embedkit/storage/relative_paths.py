"""Finds what relative paths in a TOML file lead to: beside the file, or in the working folder."""

import filecmp
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Exists = Callable[[Path], bool]


def located(
    tables: Mapping[str, Any],
    keys: Sequence[str],
    file: Path,
    exists: Exists = Path.exists,
    *,
    working_folder_first: bool = False,
) -> dict[str, Any]:
    """Return the tables of ``file`` with absolute paths where a path leads to something beside it.

    A path that leads to nothing there is left as it is, and so starts at the working folder. If it
    leads to something in both, what is beside the file is taken, and a warning says so if the two
    differ.

    Args:
        tables: the tables of the file; values may be names or ids that are no paths.
        keys: dotted keys of paths; a list on the way stands for each of its elements.
        file: the path of the file.
        exists: tells whether there is something of the expected kind at a path.
        working_folder_first: what is in the working folder is taken without a word.
    """

    def found(text: str) -> str:
        return _found(text, file, exists, working_folder_first=working_folder_first)

    changed = dict(tables)
    for key in keys:
        changed = _mapped(changed, key.split("."), found)
    return changed


def _mapped(value: Any, keys: Sequence[str], change: Callable[[str], str]) -> Any:
    if isinstance(value, list):
        return [_mapped(element, keys, change) for element in value]
    if not keys:
        return change(value) if isinstance(value, str) else value
    if isinstance(value, dict) and keys[0] in value:
        return value | {keys[0]: _mapped(value[keys[0]], keys[1:], change)}
    return value


def _found(text: str, file: Path, exists: Exists, *, working_folder_first: bool) -> str:
    if not text or text.startswith(("$", "~")):
        return text
    beside, here = file.absolute().parent / text, Path(text)
    if not exists(beside):
        return text
    if exists(here):
        if working_folder_first or beside.samefile(here):
            return text
        if not (beside.is_file() and filecmp.cmp(beside, here, shallow=False)):
            warnings.warn(
                f"{file}: {text} is {beside}, beside this file, and not {here.absolute()}, which "
                "is another",
                stacklevel=4,
            )
    return str(beside)
