"""NeoBERT as ``transformers.EuroBertModel``, and back: the same function, weight by weight.

The two differ in how rows are ordered. NeoBERT keeps queries, keys and values of a head side by
side in one matrix and rotates neighbouring features; EuroBERT keeps three matrices and rotates the
two halves of a head. Nothing is computed, so every bit survives both ways.
"""

from collections.abc import Mapping
from itertools import count
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import EuroBertConfig, EuroBertModel, PreTrainedModel

from embedkit.models.neobert import NeoBERTConfig, NeoBERTModel

ORIGIN = "embedkit_architecture"
"""The key of a ``config.json`` that tells a NeoBERT in EuroBERT's clothes from a EuroBERT."""

ModelT = TypeVar("ModelT", bound=PreTrainedModel)

_RENAMED = {
    "wo": "self_attn.o_proj",
    "ffn.w3": "mlp.down_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def obstacle(config: NeoBERTConfig) -> str | None:
    """Why a NeoBERT is no EuroBERT; ``None``: it is one."""
    expected = {"position": "rope", "hidden_act": "swiglu", "norm": "rmsnorm"}
    for key, value in expected.items():
        if (own := getattr(config, key)) != value:
            return f"its {key} is {own}, where EuroBERT has {value}"
    return None


def to_eurobert(model: NeoBERTModel) -> EuroBertModel:
    """The EuroBERT that computes what ``model`` does; what needs no reordering is shared."""
    reason = obstacle(model.config)
    assert reason is None, reason
    weights = eurobert_weights(model.state_dict(), model.config.num_attention_heads)
    return _filled(EuroBertModel, _eurobert_config(model.config), weights)


def from_eurobert(model: EuroBertModel) -> NeoBERTModel:
    """The NeoBERT that ``to_eurobert`` made ``model`` from; what needs no reordering is shared."""
    weights = neobert_weights(model.state_dict(), model.config.num_attention_heads)
    return _filled(NeoBERTModel, _neobert_config(model.config), weights)


def eurobert_weights(weights: Mapping[str, Tensor], heads: int) -> dict[str, Tensor]:
    """The weights of a NeoBERT's encoder, named and ordered as EuroBERT's."""
    named = {
        "embed_tokens.weight": weights["encoder.weight"],
        "norm.weight": weights["layer_norm.weight"],
    }
    for number in range(_layers(weights, "transformer_encoder.{}.wo.weight")):
        ours, theirs = f"transformer_encoder.{number}", f"layers.{number}"
        # Rows by head, then queries, keys and values, then neighbouring pairs of features.
        packed = weights[f"{ours}.qkv.weight"]
        q, k, v = packed.unflatten(0, (heads, 3, -1)).unbind(1)
        for name, part in (("q", _halved(q)), ("k", _halved(k)), ("v", v)):
            named[f"{theirs}.self_attn.{name}_proj.weight"] = part.flatten(0, 1).contiguous()
        gate, up = weights[f"{ours}.ffn.w12.weight"].chunk(2)
        named[f"{theirs}.mlp.gate_proj.weight"] = gate.clone()
        named[f"{theirs}.mlp.up_proj.weight"] = up.clone()
        for own, other in _RENAMED.items():
            named[f"{theirs}.{other}.weight"] = weights[f"{ours}.{own}.weight"]
    return named


def neobert_weights(weights: Mapping[str, Tensor], heads: int) -> dict[str, Tensor]:
    """The inverse of ``eurobert_weights``."""
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
        for own, other in _RENAMED.items():
            named[f"{ours}.{own}.weight"] = weights[f"{theirs}.{other}.weight"]
    return named


def _halved(rows: Tensor) -> Tensor:
    """From pairs of features to the first features of all pairs, then the second ones.

    Shapes: ``(H, head_dim, D)`` -> the same.
    """
    return rows.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)


def _paired(rows: Tensor) -> Tensor:
    """The inverse of ``_halved``."""
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
        # EuroBERT's own lies beyond our vocabulary. Whoever has the tokenizer sets its.
        mask_token_id=0,
    )
    setattr(twin, ORIGIN, NeoBERTConfig.model_type)
    return twin


def _neobert_config(config: EuroBertConfig) -> NeoBERTConfig:
    return NeoBERTConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        # Two thirds of it are the width.
        intermediate_size=config.intermediate_size * 3 // 2,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        max_position_embeddings=config.max_position_embeddings,
        norm_eps=config.rms_norm_eps,
        rope_parameters=dict(config.rope_parameters or {}),
        pad_token_id=config.pad_token_id,
    )


def _filled(kind: type[ModelT], config: Any, weights: Mapping[str, Tensor]) -> ModelT:
    # Its initial weights are drawn for nothing, but must not shift anyone else's randomness.
    with torch.random.fork_rng(devices=()):
        model = kind(config)
    model.load_state_dict(weights, assign=True)
    return model.eval()
