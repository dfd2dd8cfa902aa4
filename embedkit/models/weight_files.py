"""Files of weights: only safetensors in the folder of their model are read."""

import json
import re
from pathlib import Path

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError

from embedkit.errors import UserError

INDEX = "model.safetensors.index.json"
_ADAPTER = "adapter_config.json"
_WEIGHTS = re.compile(r"[^/\\]+\.safetensors")
_SUFFIX = ".index.json"


def check_weight_files(
    encoder: str, *, named: str | None = None, revision: str | None = None
) -> None:
    """Verify that the weights of a folder or hub id are in safetensors files inside it.

    Args:
        encoder: folder or hub id.
        named: file of weights, or index of such files, that config.json names as
            ``transformers_weights``.
        revision: revision of a hub id.

    Raises:
        UserError: they are not; the message names the file and the remedy.
    """
    if _file(encoder, _ADAPTER, revision):
        raise UserError(
            f"{encoder}: holds an adapter ({_ADAPTER}) beside its weights; merge the two with "
            "peft's merge_and_unload, save the result, and pass its folder"
        )
    if named is not None and not _WEIGHTS.fullmatch(named.removesuffix(_SUFFIX)):
        raise UserError(_refusal(f"{encoder}: config.json", named))
    for name in {INDEX, named}:
        if name and name.endswith(_SUFFIX) and (index := _file(encoder, name, revision)):
            shards(index)


def shards(index: Path) -> list[str]:
    """Return the sorted names of the weight files that an index lists, without repetition.

    Raises:
        UserError: the index is damaged, or lists a file that is not a safetensors file beside it.
    """
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"{index}: is not an index of weights; copy it anew from where the model comes from"
        ) from None
    for name in names:
        if not isinstance(name, str) or not _WEIGHTS.fullmatch(name):
            raise UserError(_refusal(str(index), name))
    return names


def _refusal(where: str, name: object) -> str:
    return (
        f"{where}: names {name} for weights, and only *.safetensors files of the same folder are "
        "read; if you trust it, load the model with transformers, save it with save_pretrained, "
        "and pass the folder of the result"
    )


def _file(encoder: str, name: str, revision: str | None) -> Path | None:
    """Return the path of a file of a folder or hub id, or ``None`` if there is no such file."""
    if Path(encoder).is_dir():
        path = Path(encoder) / name
        return path if path.is_file() else None
    try:
        return Path(hf_hub_download(encoder, name, revision=revision))
    # OSError is raised for a file that is not cached while the hub cannot be reached.
    except (HFValidationError, HfHubHTTPError, EntryNotFoundError, OSError):
        return None
