"""Conversion of NeoBERT to ``transformers.EuroBertModel`` and back, weight by weight.

The two compute the same function from weights in a different order. NeoBERT stores queries, keys
and values of a head side by side in one matrix and rotates neighbouring features; EuroBERT stores
three matrices and rotates the two halves of a head. Weights are only reordered, so that the
conversion is exact in both directions.
"""

from collections.abc import Mapping
from itertools import count
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import EuroBertConfig, EuroBertModel, PreTrainedModel

from embedkit.models.neobert import NeoBERTConfig, NeoBERTModel

ORIGIN = "embedkit_architecture"
"""Key of a ``config.json`` that marks a EuroBERT as a converted NeoBERT."""

ModelT = TypeVar("ModelT", bound=PreTrainedModel)

_RENAMED = {
    "wo": "self_attn.o_proj",
    "ffn.w3": "mlp.down_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def obstacle(config: NeoBERTConfig) -> str | None:
    """Return the reason why a NeoBERT cannot be written as a EuroBERT, or ``None`` if it can."""
    expected = {"position": "rope", "hidden_act": "swiglu", "norm": "rmsnorm"}
    for key, value in expected.items():
        if (actual := getattr(config, key)) != value:
            return f"its {key} is {actual}, where EuroBERT has {value}"
    return None


def to_eurobert(model: NeoBERTModel) -> EuroBertModel:
    """Return a EuroBERT equivalent to ``model``, which shares the weights that keep their order."""
    reason = obstacle(model.config)
    assert reason is None, reason
    weights = eurobert_weights(model.state_dict(), model.config.num_attention_heads)
    return _filled(EuroBertModel, _eurobert_config(model.config), weights)


def from_eurobert(model: EuroBertModel) -> NeoBERTModel:
    """Return the NeoBERT that ``to_eurobert`` converted; weights in the same order are shared."""
    weights = neobert_weights(model.state_dict(), model.config.num_attention_heads)
    return _filled(NeoBERTModel, _neobert_config(model.config), weights)


def eurobert_weights(weights: Mapping[str, Tensor], heads: int) -> dict[str, Tensor]:
    """Return the weights of a NeoBERT encoder under EuroBERT's names and in EuroBERT's order."""
    named = {
        "embed_tokens.weight": weights["encoder.weight"],
        "norm.weight": weights["layer_norm.weight"],
    }
    for number in range(_layers(weights, "transformer_encoder.{}.wo.weight")):
        ours, theirs = f"transformer_encoder.{number}", f"layers.{number}"
        # Rows are ordered by head, then query, key and value, then neighbouring pairs of features.
        packed = weights[f"{ours}.qkv.weight"]
        q, k, v = packed.unflatten(0, (heads, 3, -1)).unbind(1)
        for name, part in (("q", _halved(q)), ("k", _halved(k)), ("v", v)):
            named[f"{theirs}.self_attn.{name}_proj.weight"] = part.flatten(0, 1).contiguous()
        gate, up = weights[f"{ours}.ffn.w12.weight"].chunk(2)
        named[f"{theirs}.mlp.gate_proj.weight"] = gate.clone()
        named[f"{theirs}.mlp.up_proj.weight"] = up.clone()
        for neobert, eurobert in _RENAMED.items():
            named[f"{theirs}.{eurobert}.weight"] = weights[f"{ours}.{neobert}.weight"]
    return named


def neobert_weights(weights: Mapping[str, Tensor], heads: int) -> dict[str, Tensor]:
    """Return the weights of a EuroBERT in NeoBERT's form; the inverse of ``eurobert_weights``."""
    named = {
        "encoder.weight": weights["embed_tokens.weight"],
        "layer_norm.weight": weights["norm.weight"],
    }
    for number in range(_layers(weights, "layers.{}.self_attn.o_proj.weight")):
        ours, theirs = f"transformer_encoder.{number}", f"layers.{number}"
        q, k, v = (
            weights[f"{theirs}.self_attn.{name}_proj.weight"].unflatten(0, (heads, -1))
            for name in "qkv"
        )
        packed = torch.stack([_paired(q), _paired(k), v], dim=1)
        named[f"{ours}.qkv.weight"] = packed.flatten(0, 2)
        halves = [weights[f"{theirs}.mlp.{name}_proj.weight"] for name in ("gate", "up")]
        named[f"{ours}.ffn.w12.weight"] = torch.cat(halves)
        for neobert, eurobert in _RENAMED.items():
            named[f"{ours}.{neobert}.weight"] = weights[f"{theirs}.{eurobert}.weight"]
    return named


def _halved(rows: Tensor) -> Tensor:
    """Reorder neighbouring pairs of features to the first features of all pairs, then the second.

    Shapes: ``(H, head_dim, D)`` -> ``(H, head_dim, D)``.
    """
    return rows.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)


def _paired(rows: Tensor) -> Tensor:
    """Reorder the two halves of a head to neighbouring pairs of features, as before ``_halved``."""
    return rows.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


def _layers(weights: Mapping[str, Tensor], name: str) -> int:
    return next(number for number in count() if name.format(number) not in weights)


def _eurobert_config(config: NeoBERTConfig) -> EuroBertConfig:
    twin = EuroBertConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.ffn_width,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=config.norm_eps,
        rope_parameters=dict(config.rope_parameters or {}),
        pad_token_id=config.pad_token_id,
        bos_token_id=None,
        eos_token_id=None,
        # EuroBERT's default is beyond NeoBERT's vocabulary; the export sets the tokenizer's id.
        mask_token_id=0,
    )
    setattr(twin, ORIGIN, NeoBERTConfig.model_type)
    return twin


def _neobert_config(config: EuroBertConfig) -> NeoBERTConfig:
    return NeoBERTConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        # The width of NeoBERT's SwiGLU block is two thirds of its intermediate_size.
        intermediate_size=config.intermediate_size * 3 // 2,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        max_position_embeddings=config.max_position_embeddings,
        norm_eps=config.rms_norm_eps,
        rope_parameters=dict(config.rope_parameters or {}),
        pad_token_id=config.pad_token_id,
    )


def _filled(kind: type[ModelT], config: Any, weights: Mapping[str, Tensor]) -> ModelT:
    # The initial weights are replaced below; drawing them must not change the random state.
    with torch.random.fork_rng(devices=()):
        model = kind(config)
    model.load_state_dict(weights, assign=True)
    return model.eval()
