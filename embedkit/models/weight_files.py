"""The files that weights are read from: safetensors in the folder of their model, and no others."""

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
    """Refuse a folder or hub id whose weights do not lie in safetensors files of its own.

    Args:
        encoder: the folder or hub id.
        named: the file of weights, or index of such files, that config.json names as
            ``transformers_weights``.
        revision: which revision of a hub id is meant.

    Raises:
        UserError: names the file, and says what to do.
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
    """Return the names of the files that an index of weights names, each once.

    Raises:
        UserError: the index is damaged, or it names what is not a safetensors file beside it.
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
    """One file of a folder or hub id, if it is there."""
    if Path(encoder).is_dir():
        path = Path(encoder) / name
        return path if path.is_file() else None
    try:
        return Path(hf_hub_download(encoder, name, revision=revision))
    # The last is that of a file that is neither in the cache nor within reach.
    except (HFValidationError, HfHubHTTPError, EntryNotFoundError, OSError):
        return None
