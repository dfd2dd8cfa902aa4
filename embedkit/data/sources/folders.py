"""Lists the files of rows in a folder: one of a user, or one that ``datasets`` saved."""

import json
import re
import warnings
from pathlib import Path

from embedkit.data.sources.files import is_readable
from embedkit.errors import DataError

_OTHER_SPLIT = re.compile(r"(?:^|[^a-z])(?:test|dev|val|valid|validation|eval)(?:[^a-z]|$)", re.I)
_TRAIN = re.compile(r"(?:^|[^a-z])train(?:ing)?(?:[^a-z]|$)", re.I)


def files_in(folder: Path) -> list[Path]:
    """Return the files of rows in a folder, in reading order.

    A folder that ``Dataset.save_to_disk`` wrote is read in its own order, and of several splits
    ``train``. Among files of other names, those that are called after test or validation splits are
    left out where others are called train; one line says so.

    Raises:
        DataError: the folder holds no files of rows, or splits of which none is ``train``.
    """
    if (folder / "dataset_dict.json").is_file():
        return files_in(_split(folder))
    if (folder / "state.json").is_file():
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        return [folder / file["filename"] for file in state["_data_files"]]
    paths = sorted(path for path in folder.iterdir() if path.is_file() and is_readable(path))
    if not paths:
        raise DataError(
            f"{folder}: holds no file of rows: name the folder that has jsonl, json, csv, tsv, "
            "parquet or arrow files in it"
        )
    others = [path for path in paths if _OTHER_SPLIT.search(path.name)]
    if others and any(_TRAIN.search(path.name) for path in paths):
        _tell(folder, "what is not of another split", ", ".join(path.name for path in others))
        return [path for path in paths if path not in others]
    return paths


def _split(folder: Path) -> Path:
    """Return the folder of the split that is read."""
    listed = json.loads((folder / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
    others = [name for name in listed if name != "train"]
    if len(listed) == 1:
        return folder / listed[0]
    if "train" not in listed:
        raise DataError(f"{folder}: has the splits {', '.join(listed)}: name the folder of one")
    _tell(folder, "its split train", ", ".join(others))
    return folder / "train"


def _tell(folder: Path, read: str, left_out: str) -> None:
    warnings.warn(f"{folder}: {read} is read, and not {left_out}", stacklevel=3)
