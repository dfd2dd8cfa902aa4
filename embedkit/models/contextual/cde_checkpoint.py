"""Loading of released checkpoints of contextual document embeddings, cde-small-v1 and v2.

Their weights are called ``first_stage_model.*`` and ``second_stage_model.*``; a NomicBERT inside
has the names of its authors, not those of transformers. Their config.json says nothing of the
encoders' sizes, which are therefore read off the weights. No code that comes with them is run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    ModernBertModel,
    NomicBertModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from embedkit.errors import UserError
from embedkit.models import hub
from embedkit.models.backbones import PaddedBackbone
from embedkit.models.contextual.model import Contextual
from embedkit.models.st_config import read_json
from embedkit.recipe import ContextualConfig

_FIRST, _SECOND = "first_stage_model.", "second_stage_model."
_HEAD_WIDTH = 64
_NOMIC_NAMES = {
    "emb_ln.": "embeddings.LayerNorm.",
    "encoder.layers.": "layers.",
    ".attn.out_proj.": ".self_attn.o_proj.",
    ".mlp.fc11.": ".mlp.up_proj.",
    ".mlp.fc12.": ".mlp.gate_proj.",
    ".mlp.fc2.": ".mlp.down_proj.",
    ".norm1.": ".post_attention_layernorm.",
    ".norm2.": ".post_mlp_layernorm.",
}
_PROMPTS = {"query": "search_query: ", "document": "search_document: "}
_UNKNOWN = {
    "autoregressive_backbone": (False, None),
    "transductive_tie_token_embeddings": (False, None),
    "transductive_tokens_per_document": (1, None),
    "embedding_output_dim": (None,),
}
"""Settings that change what is computed, and the values that embedkit computes."""


def read_published(
    folder: str | Path,
    *,
    tokenizer: str | None = None,
    output_residual: bool | None = None,
    autocast: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Contextual:
    """Load a model from a folder in the layout of cde-small-v1 or v2, ready to encode or train.

    Args:
        folder: with config.json and model.safetensors.
        tokenizer: a folder or hub id; the releases had none of their own at first. v1 reads that
            of bert-base-uncased, v2 that of ModernBERT-base.
        output_residual: whether the output projection is added to what it came from. By default as
            the class named in config.json: v2's does, v1's does not.
        autocast: as in ``Contextual``.
        device: where to put it.

    Raises:
        UserError: the folder has another layout, or settings that embedkit does not compute.
    """
    root = Path(folder)
    config = read_json(root / "config.json")
    weights = _weights(root)
    for key, known in _UNKNOWN.items():
        if config.get(key) not in known:
            raise UserError(f"{folder}: {key} = {config[key]} is not read; pass cde-small-v1 or v2")
    if output_residual is None:
        output_residual = "DatasetTransformer" not in (config.get("architectures") or ())
    if tokenizer is None and not (root / "tokenizer_config.json").is_file():
        raise UserError(
            f"{folder}: has no tokenizer; copy into it that of bert-base-uncased for v1, of "
            "ModernBERT-base for v2"
        )
    own = hub.load_tokenizer(tokenizer or str(folder))
    first = _encoder(_under(weights, f"{_FIRST}embedder."), own, str(folder))
    second = _encoder(_under(weights, f"{_SECOND}backbone."), own, str(folder))
    settings = read_json(root / "config_sentence_transformers.json")
    model = Contextual(
        PaddedBackbone(first, own.pad_token_id or 0),
        PaddedBackbone(second, own.pad_token_id or 0),
        own,
        _shape(config, weights, second, output_residual),
        prompts={k: v for k, v in (settings.get("prompts") or _PROMPTS).items() if v is not None},
        max_tokens=int(config.get("max_seq_length") or 512),
        position_limit=int(second.config.max_position_embeddings),
        name=hub.display_name(str(folder)),
        autocast=autocast,
    )
    _load_heads(model, weights)
    return model.to(device or torch.device("cpu")).eval()


def _weights(root: Path) -> dict[str, Tensor]:
    try:
        weights = load_file(root / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise UserError(f"{root / 'model.safetensors'}: cannot be read: {error}") from None
    if not any(name.startswith(_SECOND) for name in weights):
        raise UserError(f"{root}: has no {_SECOND}* weights; pass a cde-small-v1 or v2")
    return weights


def _shape(
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    second: PreTrainedModel,
    output_residual: bool,
) -> ContextualConfig:
    slots = int(config["transductive_corpus_size"])
    nomic = second.config.model_type == "nomic_bert"
    null = f"{_SECOND}sequence_dropout_null_embedding" in weights
    unrotated = config.get("disable_transductive_rotary_embedding", True)
    return ContextualConfig(
        num_context=slots,
        context_dropout=float(config.get("transductive_sequence_dropout_prob") or 0) * null,
        null_vector=null,
        include_prompt=not config.get("pool_ignore_instruction_tokens", False),
        soft_prompts=len(_soft_prompts(weights)),
        context_projection=True,
        context_norm=False,
        output_projection=True,
        output_residual=output_residual,
        # Their code takes positions from NomicBERT's context alone.
        position_free=nomic and bool(unrotated),
        first_position=slots,
        entry="published",
    )


def _load_heads(model: Contextual, weights: Mapping[str, Tensor]) -> None:
    heads = {
        **{f"context_projection.{k}": v for k, v in _under(weights, f"{_FIRST}mlp.").items()},
        **{
            f"output_projection.{name}": each
            for name, each in _under(weights, f"{_SECOND}output_projection.").items()
        },
        "slots.soft_prompts": _soft_prompts(weights),
    }
    if model.config.null_vector:
        heads["slots.null"] = weights[f"{_SECOND}sequence_dropout_null_embedding"]
    encoders = ("second.", "_own_first.")
    assert heads.keys() == {k for k in model.state_dict() if not k.startswith(encoders)}
    model.load_state_dict(heads, strict=False)


def _soft_prompts(weights: Mapping[str, Tensor]) -> Tensor:
    """What their network of two layers makes of a vector of ones, ``(S, D)``."""
    inner, inner_bias, outer, outer_bias = (
        weights[f"{_SECOND}prompt_projection.{layer}.{kind}"]
        for layer in (0, 2)
        for kind in ("weight", "bias")
    )
    hidden = torch.relu(inner.sum(1) + inner_bias)
    return (outer @ hidden + outer_bias).view(-1, inner.shape[1])


def nomic_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a NomicBERT under transformers' names instead of its authors'."""
    named: dict[str, Tensor] = {}
    for name, weight in weights.items():
        for theirs, ours in _NOMIC_NAMES.items():
            name = name.replace(theirs, ours)
        if name.endswith(".attn.Wqkv.weight"):
            layer = name.removesuffix("attn.Wqkv.weight")
            for part, each in zip("qkv", weight.chunk(3), strict=True):
                named[f"{layer}self_attn.{part}_proj.weight"] = each.clone()
        else:
            named[name] = weight
    return named


def _encoder(
    weights: Mapping[str, Tensor], tokenizer: PreTrainedTokenizerBase, folder: str
) -> PreTrainedModel:
    """Return a NomicBERT or ModernBERT whose sizes are read off the weights."""
    kind: Any = ModernBertModel
    named, words, down = dict(weights), "embeddings.tok_embeddings", "mlp.Wo"
    if "emb_ln.weight" in weights:
        kind, named = NomicBertModel, nomic_weights(weights)
        words, down = "embeddings.word_embeddings", "mlp.down_proj"
    try:
        vocabulary, width = named[f"{words}.weight"].shape
        inner = named[f"layers.0.{down}.weight"].shape[1]
    except KeyError:
        raise UserError(f"{folder}: its encoders are no NomicBERTs and no ModernBERTs") from None
    config = kind.config_class(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=1 + max(int(k.split(".")[1]) for k in named if k.startswith("layers.")),
        num_attention_heads=max(1, width // _HEAD_WIDTH),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
    )
    # Its initial weights are drawn for nothing, but must not shift anyone else's randomness.
    with torch.random.fork_rng(devices=()):
        network: PreTrainedModel = kind(config)
    try:
        network.load_state_dict(named)
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip()
        raise UserError(f"{folder}: its weights do not fit: {first}") from None
    return network


def _under(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): each for name, each in weights.items() if name.startswith(prefix)
    }
