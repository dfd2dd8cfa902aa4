"""Conversion of released checkpoints of contextual document embeddings, cde-small-v1 and v2.

Their weights are called ``first_stage_model.*`` and ``second_stage_model.*``; a NomicBERT inside
has the names of its authors, not those of transformers. Their config.json says nothing of the
encoders' sizes, which are therefore read off the weights.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import ModernBertConfig, NomicBertConfig

from embedkit.errors import UserError
from embedkit.models import hub
from embedkit.models.model_files import under
from embedkit.tokens.prompts import SEARCH

_FIRST, _SECOND = "first_stage_model.", "second_stage_model."
_NULL = f"{_SECOND}sequence_dropout_null_embedding"
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
_SUPPORTED: dict[str, tuple[object, ...]] = {
    "autoregressive_backbone": (False, None),
    "transductive_tie_token_embeddings": (False, None),
    "transductive_tokens_per_document": (1, None),
    "embedding_output_dim": (None,),
}
"""Settings that change what is computed, and the values that embedkit computes."""


def converted(
    folder: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the config.json and the weights of a released checkpoint in embedkit's format.

    v2 adds the output of its last perceptron to the input and v1 does not, which the class named in
    config.json tells.

    Raises:
        UserError: another layout, settings that embedkit does not compute, or no tokenizer.
    """
    _check_readable(folder, config, weights)
    first, first_weights = _encoder(under(weights, f"{_FIRST}embedder."), folder)
    second, second_weights = _encoder(under(weights, f"{_SECOND}backbone."), folder)
    slots = {"soft_prompts": _soft_prompts(weights)}
    if has_null := _NULL in weights:
        slots["null"] = weights[_NULL]
    count = int(config["transductive_corpus_size"])
    dropout = float(config.get("transductive_sequence_dropout_prob") or 0)
    unrotated = bool(config.get("disable_transductive_rotary_embedding", True))
    contextual = {
        "num_context": count,
        "context_dropout": dropout if has_null else 0.0,
        "null_vector": has_null,
        "include_prompt": not config.get("pool_ignore_instruction_tokens", False),
        "soft_prompts": len(slots["soft_prompts"]),
        "context_projection": True,
        "context_norm": False,
        "output_projection": True,
        "output_residual": "DatasetTransformer" not in (config.get("architectures") or ()),
        # The released code leaves out the positions of NomicBERT's context alone.
        "position_free": isinstance(second, NomicBertConfig) and unrotated,
        "first_position": count,
        "entry": "published",
    }
    named = {
        "first.": first_weights,
        "second.": second_weights,
        "context_projection.": under(weights, f"{_FIRST}mlp."),
        "output_projection.": under(weights, f"{_SECOND}output_projection."),
        "slots.": slots,
    }
    description = {
        "contextual": contextual,
        # The released code leaves it to its users to scale vectors to unit norm.
        "normalize": False,
        "max_seq_length": int(config.get("max_seq_length") or 512),
        "position_limit": int(second.max_position_embeddings),
        "prompts": SEARCH,
        "frozen": None,
        "first": first.to_dict(),
        "second": second.to_dict(),
    }
    return description, {
        f"{prefix}{name}": weight for prefix, part in named.items() for name, weight in part.items()
    }


def _check_readable(folder: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """Verify that a checkpoint is of a layout and has settings that embedkit computes."""
    if not any(name.startswith(_SECOND) for name in weights):
        raise UserError(f"{folder}: has no {_SECOND}* weights; pass a cde-small-v1 or v2")
    for key, supported in _SUPPORTED.items():
        if config.get(key) not in supported:
            raise UserError(f"{folder}: {key} = {config[key]} is not read; pass cde-small-v1 or v2")
    if not (folder / "tokenizer_config.json").is_file():
        raise UserError(
            f"{folder}: has no tokenizer; copy into it that of bert-base-uncased for v1, of "
            "ModernBERT-base for v2"
        )


def _soft_prompts(weights: Mapping[str, Tensor]) -> Tensor:
    """Return the output of the released two-layer prompt network for a vector of ones, (S, D)."""
    inner, inner_bias, outer, outer_bias = (
        weights[f"{_SECOND}prompt_projection.{layer}.{kind}"]
        for layer in (0, 2)
        for kind in ("weight", "bias")
    )
    hidden = torch.relu(inner.sum(1) + inner_bias)
    return (outer @ hidden + outer_bias).view(-1, inner.shape[1])


def _nomic_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a NomicBERT under transformers' names instead of its authors'."""
    named: dict[str, Tensor] = {}
    for name, weight in weights.items():
        for theirs, ours in _NOMIC_NAMES.items():
            name = name.replace(theirs, ours)
        if name.endswith(".attn.Wqkv.weight"):
            layer = name.removesuffix("attn.Wqkv.weight")
            for part, matrix in zip("qkv", weight.chunk(3), strict=True):
                named[f"{layer}self_attn.{part}_proj.weight"] = matrix
        else:
            named[name] = weight
    return named


def _encoder(weights: Mapping[str, Tensor], folder: Path) -> tuple[Any, Mapping[str, Tensor]]:
    """Return the config of a NomicBERT or ModernBERT, read off its weights, and the weights."""
    kind: Any = ModernBertConfig
    words, down = "embeddings.tok_embeddings", "mlp.Wo"
    if "emb_ln.weight" in weights:
        kind, weights = NomicBertConfig, _nomic_weights(weights)
        words, down = "embeddings.word_embeddings", "mlp.down_proj"
    try:
        vocabulary, width = weights[f"{words}.weight"].shape
        inner = weights[f"layers.0.{down}.weight"].shape[1]
    except KeyError:
        raise UserError(f"{folder}: its encoders are no NomicBERTs and no ModernBERTs") from None
    tokenizer = hub.load_tokenizer(str(folder))
    layers = [int(name.split(".")[1]) for name in weights if name.startswith("layers.")]
    config = kind(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=1 + max(layers),
        num_attention_heads=max(1, width // _HEAD_WIDTH),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
    )
    return config, weights
