"""The names of NeoBERT's weights: every dialect in use is read, the authors' layout is written.

The authors' layout is that of ``NeoBERTForMaskedLM``: ``model.encoder.weight``,
``model.transformer_encoder.0.qkv.weight``, ..., ``model.layer_norm.weight``, ``decoder.weight`` and
``decoder.bias``. No code that comes with a model is run.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from embedkit.errors import UserError
from embedkit.models.neobert.config import NeoBERTConfig
from embedkit.models.neobert.encoder import NeoBERTModel, NeoBERTPreTrainedModel
from embedkit.models.neobert.heads import NeoBERTForMaskedLM
from embedkit.models.pickled import refuse_pickle
from embedkit.models.weight_files import INDEX, check_weight_files, shards

PINNED = {"chandar-lab/NeoBERT": "5424c8efeea6491b151d62dee55a752165407430"}
"""The revision of a hub id that is taken where none is asked for."""

_BASE = "model"
_HEADS = ("decoder", "dense", "classifier")
_WRAPPERS = ("module", "_orig_mod")
"""What DistributedDataParallel and torch.compile put into a name."""
_FILES = ["config.json", "model.safetensors", "model-*.safetensors", "model.safetensors.index.json"]
_SHOWN = 8

ModelT = TypeVar("ModelT", bound=NeoBERTPreTrainedModel)


def load_pretrained(
    kind: type[ModelT], model: str | Path, *, revision: str | None = None
) -> ModelT:
    """A model of class ``kind`` with the weights of a folder or hub id, in evaluation mode.

    A head that ``kind`` does not have is left out. Every weight keeps the type it is stored in.

    Raises:
        UserError: there is no such model, or its weights are not exactly those of ``kind``.
    """
    folder = _local(str(model), revision)
    config = _config(folder)
    check_weight_files(str(folder))
    weights = normalised(_weights(folder))
    _settle_ffn_width(config, weights)
    with torch.device("meta"):
        empty = kind(config)
    own = empty.state_dict()
    wanted = {_full_name(name): name for name in own}
    kept = {name for name in weights if name in wanted or name.split(".")[0] not in _HEADS}
    problems = {
        "missing": wanted.keys() - kept,
        "unexpected": kept - wanted.keys(),
        "misshapen": [
            f"{name} is {tuple(weights[name].shape)}, expected {tuple(own[wanted[name]].shape)}"
            for name in kept & wanted.keys()
            if weights[name].shape != own[wanted[name]].shape
        ],
    }
    if any(problems.values()):
        raise UserError(
            f"{model}: its weights are not those of a {kind.__name__} ({_listed(problems)}); pass "
            "a checkpoint that fits its config.json"
        )
    empty.load_state_dict({wanted[name]: weights[name] for name in wanted}, assign=True)
    empty.name_or_path = str(model)
    return empty.eval()


def save_hub_layout(model: NeoBERTPreTrainedModel, folder: Path) -> None:
    """Write ``model`` with the authors' names of weights and settings, which ours stand beside."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {_full_name(name): each.contiguous() for name, each in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = model.config
    authors_names = {NeoBERTModel: "NeoBERT", NeoBERTForMaskedLM: "NeoBERTLMHead"}
    settings = config.to_diff_dict() | {
        "architectures": [authors_names.get(type(model), type(model).__name__)],
        "dim_head": config.head_dim,
        "max_length": config.max_position_embeddings,
        "torch_dtype": str(model.dtype).removeprefix("torch."),
    }
    text = json.dumps(dict(sorted(settings.items())), indent=2)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def normalised(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same weights under the authors' names.

    Understands a bare encoder, names with ``module.`` or ``_orig_mod.`` in them, and SwiGLU as
    three matrices, of which ``w1`` is the gate and ``w2`` what passes.
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
    """``name`` as a model with a head has it."""
    return name if name.split(".")[0] in (_BASE, *_HEADS) else f"{_BASE}.{name}"


def _settle_ffn_width(config: NeoBERTConfig, weights: Mapping[str, Tensor]) -> None:
    """Read ``intermediate_size`` as the width itself where the weights show that it is meant so."""
    packed = weights.get("model.transformer_encoder.0.ffn.w12.weight")
    if config.hidden_act != "swiglu" or packed is None:
        return
    width = packed.shape[0] // 2
    if width == config.intermediate_size != config.ffn_width:
        config.intermediate_size = width * 3 // 2


def _listed(problems: Mapping[str, Iterable[str]]) -> str:
    parts = []
    for kind, found in problems.items():
        names = sorted(found)
        if names:
            more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            parts.append(f"{len(names)} {kind}: {', '.join(names[:_SHOWN])}{more}")
    return "; ".join(parts)


def _local(model: str, revision: str | None) -> Path:
    folder = Path(model)
    if folder.is_dir():
        return folder
    try:
        return Path(
            snapshot_download(model, revision=revision or PINNED.get(model), allow_patterns=_FILES)
        )
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(
            f"{model}: is no folder here, and the hub does not give it: {first}"
        ) from None


def _config(folder: Path) -> NeoBERTConfig:
    path = folder / "config.json"
    if not path.is_file():
        refuse_pickle(str(folder))
    settings = _json(path)
    kind = settings.get("model_type")
    if kind != NeoBERTConfig.model_type:
        raise UserError(f"{path}: its model_type is {kind}, not {NeoBERTConfig.model_type}")
    return NeoBERTConfig.from_dict(settings)


def _weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, whether in one file or in several."""
    names = ["model.safetensors"]
    index = folder / INDEX
    if index.is_file():
        names = shards(index)
    weights: dict[str, Tensor] = {}
    for name in names:
        path = folder / name
        if not path.is_file():
            refuse_pickle(str(folder))
            raise UserError(f"{folder}: holds no {name}; pass a folder with all of its weights")
        try:
            weights |= load_file(path)
        except SafetensorError as error:
            raise UserError(f"{path}: cannot be read: {error}") from None
    return weights


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise UserError(f"{path.parent}: holds no {path.name}") from None
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON: {error}") from None
