"""Export and loading of two-stage models: a sentence-transformers folder with code in one file."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModel, PreTrainedModel

from embedkit.errors import UserError
from embedkit.models import hub
from embedkit.models.backbones import Backbone, NeoBERTBackbone, PaddedBackbone
from embedkit.models.contextual.context import Context
from embedkit.models.contextual.model import Contextual
from embedkit.models.eurobert import ORIGIN, from_eurobert, obstacle, to_eurobert
from embedkit.models.neobert import NeoBERTConfig, NeoBERTModel
from embedkit.models.quiet import quietly
from embedkit.models.st_config import read_json
from embedkit.recipe import ContextualConfig
from embedkit.storage.atomic import write_json
from embedkit.storage.folders import whole_folder
from embedkit.tokens.tokenizer import Tokenize

_CODE = "modeling_contextual"


def write_contextual(
    model: Contextual, folder: Path, *, context: Context | None = None, card: str = ""
) -> None:
    """Write a folder that ``SentenceTransformer(folder, trust_remote_code=True)`` opens.

    Its ``encode`` takes ``dataset_embeddings``. With ``context`` that context is frozen inside:
    there is no first encoder then, and nothing to pass. The folder appears whole or not at all.

    Raises:
        UserError: the context is another model's, a NeoBERT ablation has no stock form, or
            ``folder`` holds something that embedkit did not write.
    """
    if context is not None:
        model.check_made(context)
    context = context or model.frozen
    second = _stock(model.second.model, model)
    own_first = model.first if context is None and not model.config.tied else None
    first = _stock(own_first.model, model) if own_first is not None else None
    weights = {f"second.{name}": each for name, each in second.state_dict().items()}
    if first is not None:
        weights |= {f"first.{name}": each for name, each in first.state_dict().items()}
    weights |= _heads(model)
    if context is not None:
        weights = {k: v for k, v in weights.items() if not k.startswith("context_projection.")}
        weights["frozen"] = context.vectors
    with whole_folder(folder, "a model") as aside:
        write_json(aside / "config.json", _config(model, first, second, context))
        weights = {name: each.detach().cpu().contiguous() for name, each in weights.items()}
        save_file(weights, aside / "model.safetensors", metadata={"format": "pt"})
        shutil.copy(Path(__file__).with_name(f"{_CODE}.py"), aside / f"{_CODE}.py")
        _write_settings(model, aside)
        # Or the file would cut at whatever limit was in use last.
        Tokenize(model.tokenizer)
        model.tokenizer.save_pretrained(aside)
        (aside / "README.md").write_text(card, encoding="utf-8")


def read_contextual(
    folder: str | Path,
    *,
    autocast: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Contextual:
    """The model of a folder that ``write_contextual`` wrote, ready to encode or to train.

    Raises:
        UserError: the folder holds another kind of model, or other weights than its config.json
            describes.
    """
    root = Path(folder)
    config = read_json(root / "config.json")
    if "contextual" not in config:
        raise UserError(f"{folder}: holds no two-stage model that embedkit wrote")
    try:
        weights = load_file(root / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise UserError(f"{root / 'model.safetensors'}: cannot be read: {error}") from None
    shape, facts = ContextualConfig(**config["contextual"]), config["frozen"]
    frozen = None
    if facts:
        kept = {name: facts[name] for name in ("model", "corpus_size", "seed")}
        frozen = Context(weights.pop("frozen"), **kept)
    tokenizer = hub.load_tokenizer(str(folder))
    encoders = {
        stage: _encoder(root, stage, config[stage], weights, tokenizer.pad_token_id or 0)
        for stage in ("first", "second")
        if config[stage]
    }
    settings = read_json(root / "config_sentence_transformers.json")
    model = Contextual(
        encoders.get("first"),
        encoders["second"],
        tokenizer,
        shape,
        prompts=settings["prompts"],
        max_tokens=config["max_seq_length"],
        position_limit=config["position_limit"],
        name=hub.display_name(str(folder)),
        autocast=autocast,
        frozen=frozen,
    )
    under = tuple(f"{stage}." for stage in encoders)
    heads = {name: each for name, each in weights.items() if not name.startswith(under)}
    _load_heads(model, heads, str(folder))
    return model.to(device or torch.device("cpu")).eval()


def _stock(network: PreTrainedModel, model: Contextual) -> PreTrainedModel:
    """Return the encoder as a class of transformers; a NeoBERT is converted to a EuroBERT."""
    if not isinstance(network, NeoBERTModel):
        return network
    if reason := obstacle(network.config):
        raise UserError(f"{model.name}: {reason}, and there is no other stock form to export to")
    return to_eurobert(network)


def _encoder(
    folder: Path, stage: str, config: Mapping[str, Any], weights: Mapping[str, Tensor], pad_id: int
) -> Backbone:
    # Its initial weights are drawn for nothing, but must not shift anyone else's randomness.
    with torch.random.fork_rng(devices=()), quietly():
        network = AutoModel.from_config(AutoConfig.for_model(**config))
    if hasattr(network, "pooler"):
        network.pooler = None
    try:
        network.load_state_dict(_under(weights, f"{stage}."))
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip()
        raise UserError(
            f"{folder}: the weights of its {stage} encoder do not fit its config.json "
            f"({first:.160} ...); take both files from the same export"
        ) from None
    if getattr(network.config, ORIGIN, None) == NeoBERTConfig.model_type:
        return NeoBERTBackbone(from_eurobert(network))
    return PaddedBackbone(network, pad_id)


def _under(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): each for name, each in weights.items() if name.startswith(prefix)
    }


def _heads(model: Contextual) -> dict[str, Tensor]:
    """Return the weights that are not part of the encoders."""
    return {
        name: weight
        for name, weight in model.state_dict().items()
        if not name.startswith(("second.", "_own_first."))
    }


def _load_heads(model: Contextual, stored: Mapping[str, Tensor], folder: str) -> None:
    if different := sorted(_heads(model).keys() ^ stored.keys()):
        raise UserError(
            f"{folder}: its weights do not fit its config.json ({', '.join(different[:3])} ...); "
            "take both files from the same export"
        )
    model.load_state_dict(stored, strict=False)


def _config(
    model: Contextual,
    first: PreTrainedModel | None,
    second: PreTrainedModel,
    context: Context | None,
) -> dict[str, Any]:
    described, shape = None, model.config
    if context is not None:
        # Nothing of the first stage is left.
        shape = shape.model_copy(update={"tied": False, "context_projection": False})
        described = {
            "documents": len(context.vectors),
            "model": context.model,
            "corpus_size": context.corpus_size,
            "seed": context.seed,
            "hash": context.hash,
        }
    return {
        "architectures": ["ContextualModule"],
        "contextual": shape.model_dump(),
        "max_seq_length": model.max_tokens,
        "position_limit": model.position_limit + model.config.text_start,
        "document_prompt": model.prompts.get("document", ""),
        "frozen": described,
        "first": first and first.config.to_dict(),
        "second": second.config.to_dict(),
    }


def _write_settings(model: Contextual, folder: Path) -> None:
    module = {
        "idx": 0,
        "name": "0",
        "path": "",
        "type": f"{_CODE}.ContextualModule",
        "kwargs": ["dataset_embeddings"],
    }
    write_json(folder / "modules.json", [module])
    settings = {
        "model_type": "SentenceTransformer",
        "prompts": model.prompts,
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }
    write_json(folder / "config_sentence_transformers.json", settings)
