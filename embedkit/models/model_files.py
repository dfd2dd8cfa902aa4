"""Files of a model's folder or hub id: settings in JSON, and weights in safetensors alone.

Pickles are refused, since reading one may run code in it, and no code of a model is run.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import EntryNotFoundError, HFValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from embedkit.errors import UserError
from embedkit.storage.offline import settle_network

PINNED = {"chandar-lab/NeoBERT": "5424c8efeea6491b151d62dee55a752165407430"}
"""Revision of a hub id that is loaded by default."""

_FETCHED = ["*.json", "*.txt", "*.model", "*.safetensors"]
"""Patterns of the files to fetch of a model on the hub: settings, tokenizer and weights."""
# OSErrors are those of HTTP, and of a file that is not cached while the hub cannot be reached.
_HUB_ERRORS = (HFValidationError, EntryNotFoundError, OSError)
_WEIGHTS = "model.safetensors"
_ADAPTER = "adapter_config.json"
_INDEX = ".index.json"
_PICKLE = "pytorch_model.bin"
_ZERO_SCRIPT = "zero_to_fp32.py"
"""Script that DeepSpeed puts beside the shards of a checkpoint, to convert them to weights."""


def fetched(model: str) -> Path:
    """Return a model's folder: ``model`` itself, or the hub's cache once its files are in it."""
    if Path(model).is_dir():
        return Path(model)
    try:
        revision = PINNED.get(model)
        return Path(snapshot_download(model, revision=revision, allow_patterns=_FETCHED))
    except _HUB_ERRORS as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"{model}: is no folder here, and the hub does not give it: {reason}"
        ) from None


@cache
def located(model: str) -> str:
    """Return the folder of ``model``; a hub id without ``modules.json`` is returned as it is.

    Raises:
        UserError: the hub has a ``modules.json`` but not the model's weights in safetensors.
    """
    if Path(model).is_dir() or file_of(model, "modules.json") is None:
        return model
    folder = fetched(model)
    if not list(folder.rglob("*.safetensors")):
        refuse_pickle(model)
    return str(folder)


def file_of(model: str, name: str) -> Path | None:
    """Return the path of a file of a folder or hub id, or ``None`` if it has no such file."""
    if Path(model).is_dir():
        path = Path(model) / name
        return path if path.is_file() else None
    settle_network()
    try:
        return Path(hf_hub_download(model, name, revision=PINNED.get(model)))
    except _HUB_ERRORS:
        return None


def read_json(path: Path, kind: type[dict[str, Any]] | type[list[Any]] = dict) -> Any:
    """Return the ``kind`` in a JSON file, which holds nothing else; an empty one without a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else kind()
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(content, kind):
        expected = "an object" if kind is dict else "a list"
        raise UserError(f"{path}: is not {expected}; copy it anew from where the model comes from")
    return content


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return all weights of a folder, which has them in one safetensors file or in several."""
    check_weight_files(str(folder))
    index = folder / f"{_WEIGHTS}{_INDEX}"
    weights: dict[str, Tensor] = {}
    for name in _shards(index) if index.is_file() else [_WEIGHTS]:
        path = folder / name
        if not path.is_file():
            refuse_pickle(str(folder))
            raise UserError(f"{folder}: holds no {name}; pass a folder with all of its weights")
        try:
            weights |= load_file(path)
        except SafetensorError as error:
            raise UserError(f"{path}: cannot be read: {error}") from None
    return weights


def fill(network: nn.Module, weights: Mapping[str, Tensor], mismatch: str, remedy: str) -> None:
    """Load the weights of a network, in the dtype that they have.

    Raises:
        UserError: they are not exactly those of the network; ``mismatch`` says which and
            ``remedy`` what to do.
    """
    try:
        network.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        _, *reasons = (f"{line.strip():.300}" for line in str(error).splitlines())
        raise UserError(f"{mismatch} ({' '.join(reasons[:2])} ...); {remedy}") from None


def under(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the weights whose names begin with ``prefix``, by the rest of their names."""
    start = len(prefix)
    return {name[start:]: weight for name, weight in weights.items() if name.startswith(prefix)}


def check_weight_files(encoder: str, *, named: str | None = None) -> None:
    """Raise UserError unless the weights of a folder or hub id are in safetensors files inside it.

    ``named`` is the file of weights, or index of such files, that config.json names as
    ``transformers_weights``.
    """
    if file_of(encoder, _ADAPTER):
        raise UserError(
            f"{encoder}: holds an adapter ({_ADAPTER}); merge it into the weights of its base with "
            "peft's merge_and_unload, save the result, and pass its folder"
        )
    if named is not None:
        _check_name(f"{encoder}: config.json", named, named.removesuffix(_INDEX))
    for name in {f"{_WEIGHTS}{_INDEX}", named}:
        if name and name.endswith(_INDEX) and (index := file_of(encoder, name)):
            _shards(index)


def refuse_pickle(encoder: str) -> None:
    """Raise UserError, which says what to pass, if an encoder has but pickles or an ONNX graph."""
    names = [path.name for path in Path(encoder).glob("*")]
    if not Path(encoder).is_dir():
        # The hub's client raises errors of many libraries, and the caller has one to report anyway.
        with suppress(Exception):
            names = list(HfApi().list_repo_files(encoder))
    if any(name.endswith(".safetensors") for name in names):
        return
    if _PICKLE in names or f"{_PICKLE}{_INDEX}" in names:
        code = (
            "from transformers import AutoModel, AutoTokenizer; "
            f"[kind.from_pretrained('{encoder}').save_pretrained('safe') "
            "for kind in (AutoModel, AutoTokenizer)]"
        )
        raise UserError(
            f"{encoder}: its weights are a pickle ({_PICKLE}), which is not read; if you trust it, "
            f'convert it with: python -c "{code}" and pass the folder safe'
        )
    if _ZERO_SCRIPT in names:
        script = Path(encoder) / _ZERO_SCRIPT
        raise UserError(
            f"{encoder}: is a checkpoint of DeepSpeed, pickles that are not read; if you trust it, "
            f"convert it with: python {script} {encoder} safe --safe_serialization, put the "
            "model's config.json beside, and pass the folder safe"
        )
    if any(name.split("/")[0] in ("onnx", "model.onnx") for name in names):
        raise UserError(
            f"{encoder}: holds an ONNX graph and no weights; pass the model that it was exported "
            "from"
        )


def _shards(index: Path) -> list[str]:
    """Return the sorted names of the weight files that an index lists, without repetition."""
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        if not names:
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"{index}: is not an index of weights; copy it anew from where the model comes from"
        ) from None
    for name in names:
        _check_name(str(index), name, name)
    return names


def _check_name(where: str, named: object, file: object) -> None:
    """Raise UserError unless ``file`` is a safetensors file in the folder that names it."""
    if not isinstance(file, str) or not re.fullmatch(r"[^/\\]+\.safetensors", file):
        raise UserError(
            f"{where}: names {named} for weights, and only *.safetensors files of the same folder "
            "are read; if you trust it, load the model with transformers, save it with "
            "save_pretrained, and pass the folder of the result"
        )
