"""Reads NeoBERT's weights under all names in use, and writes them under the authors' names.

The authors' layout is that of ``NeoBERTForMaskedLM``: ``model.encoder.weight``,
``model.transformer_encoder.0.qkv.weight``, ..., ``model.layer_norm.weight``, ``decoder.weight`` and
``decoder.bias``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor

from embedkit.errors import UserError
from embedkit.models.model_files import fetched, fill, read_json, read_weights, refuse_pickle
from embedkit.models.neobert.config import NeoBERTConfig
from embedkit.models.neobert.encoder import NeoBERTModel, NeoBERTPreTrainedModel
from embedkit.models.neobert.heads import NeoBERTForMaskedLM
from embedkit.storage.atomic import write_json

_HEADS = ("decoder", "dense", "classifier")
_WRAPPERS = ("module", "_orig_mod")
"""Parts that DistributedDataParallel and torch.compile add to the names of weights."""

ModelT = TypeVar("ModelT", bound=NeoBERTPreTrainedModel)


def load_pretrained(kind: type[ModelT], model: str | Path) -> ModelT:
    """Load a model of class ``kind`` from a folder or hub id, in evaluation mode.

    Weights of a head that ``kind`` does not have are ignored. Weights keep the dtype of the file.

    Raises:
        UserError: there is no such model, or its weights are not exactly those of ``kind``.
    """
    folder = fetched(str(model))
    config = _config(folder)
    weights = _normalised(read_weights(folder))
    packed = weights.get("model.transformer_encoder.0.ffn.w12.weight")
    if config.hidden_act == "swiglu" and packed is not None:
        # In some config.json intermediate_size is the width of SwiGLU, as the weights show.
        width = packed.shape[0] // 2
        if width == config.intermediate_size != config.ffn_width:
            config.intermediate_size = width * 3 // 2
    with torch.device("meta"):
        loaded = kind(config)
    own = {_full_name(name): name for name in loaded.state_dict()}
    kept = {k: w for k, w in weights.items() if k in own or k.split(".")[0] not in _HEADS}
    mismatch = f"{model}: its weights are not those of a {kind.__name__}"
    remedy = "pass a checkpoint that fits its config.json"
    fill(loaded, {own.get(k, k): weight for k, weight in kept.items()}, mismatch, remedy)
    loaded.name_or_path = str(model)
    return loaded.eval()


def save_hub_layout(model: NeoBERTPreTrainedModel, folder: Path) -> None:
    """Write ``model`` with the authors' names of weights and both names of settings."""
    folder.mkdir(parents=True, exist_ok=True)
    state = model.state_dict()
    weights = {_full_name(name): weight.contiguous() for name, weight in state.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = model.config
    authors_names = {NeoBERTModel: "NeoBERT", NeoBERTForMaskedLM: "NeoBERTLMHead"}
    settings = config.to_diff_dict() | {
        "architectures": [authors_names.get(type(model), type(model).__name__)],
        "dim_head": config.head_dim,
        "max_length": config.max_position_embeddings,
        "torch_dtype": str(model.dtype).removeprefix("torch."),
    }
    write_json(folder / "config.json", dict(sorted(settings.items())))


def _normalised(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of an encoder, with a head or without, under the authors' names.

    SwiGLU may be stored as three matrices: ``w1`` is the gate, and ``w2`` the up projection.
    """
    named: dict[str, Tensor] = {}
    for key, weight in weights.items():
        parts = [part for part in key.split(".") if part not in _WRAPPERS]
        name = _full_name(".".join(parts))
        if name in named:
            raise UserError(f"{name}: the checkpoint has it twice, the second time as {key}")
        named[name] = weight
    for gate in [name for name in named if name.endswith(".ffn.w1.weight")]:
        up, packed = (gate.replace(".w1.", f".{part}.") for part in ("w2", "w12"))
        if up in named:
            named[packed] = torch.cat([named.pop(gate), named.pop(up)])
    return named


def _full_name(name: str) -> str:
    """Return the authors' name of a weight, which is that in a model with a head."""
    return name if name.split(".")[0] in ("model", *_HEADS) else f"model.{name}"


def _config(folder: Path) -> NeoBERTConfig:
    path = folder / "config.json"
    if not path.is_file():
        refuse_pickle(str(folder))
        raise UserError(f"{folder}: holds no config.json")
    settings = read_json(path)
    if (kind := settings.get("model_type")) != NeoBERTConfig.model_type:
        raise UserError(f"{path}: its model_type is {kind}, not {NeoBERTConfig.model_type}")
    return NeoBERTConfig.from_dict(settings)
