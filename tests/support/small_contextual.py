"""Two-stage models over tiny random encoders of every architecture, in double precision."""

from typing import Any

import torch
from support.tiny_bert import real_tokenizer
from support.tiny_neobert import tiny_neobert
from transformers import (
    BertConfig,
    BertModel,
    EuroBertConfig,
    EuroBertModel,
    ModernBertConfig,
    ModernBertModel,
    NomicBertConfig,
    NomicBertModel,
    PreTrainedModel,
    RobertaConfig,
    RobertaModel,
)

from embedkit.models.backbones import Backbone, NeoBERTBackbone, PaddedBackbone
from embedkit.models.contextual.model import Contextual
from embedkit.recipe import ContextualConfig
from embedkit.tokens.batch import TokenBatch

WIDTH = 16
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": WIDTH,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
BACKBONES = ["neobert", "bert", "roberta", "modernbert", "nomic_bert", "eurobert"]

TEXTS = TokenBatch.from_lists(
    [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15], [16, 17], [18, 19, 20, 21], [22, 5, 6]]
)
DOCUMENTS = TokenBatch.from_lists([[30, 31], [32, 33, 34, 35, 36], [37], [38, 39, 40]])


def encoder(kind: str, *, dropout: float = 0.0, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """Two or three random layers, the same at every call."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return _encoder(kind, dropout, SIZES | changes).double()


def _encoder(kind: str, dropout: float, sizes: dict[str, Any]) -> PreTrainedModel:
    usual: dict[str, Any] = {
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }
    if kind == "bert":
        return BertModel(BertConfig(**sizes, **usual), add_pooling_layer=False)
    if kind == "roberta":
        return RobertaModel(RobertaConfig(**sizes, **usual), add_pooling_layer=False)
    if kind == "nomic_bert":
        return NomicBertModel(NomicBertConfig(**sizes, **usual))
    if kind == "eurobert":
        return EuroBertModel(EuroBertConfig(**sizes, mask_token_id=1))
    assert kind == "modernbert"
    # A window of two tokens to each side in two layers of three.
    windows: dict[str, Any] = {"local_attention": 4, "global_attn_every_n_layers": 3}
    special: dict[str, Any] = {
        "cls_token_id": 1,
        "sep_token_id": 2,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    dropouts: dict[str, Any] = {
        "embedding_dropout": dropout,
        "mlp_dropout": dropout,
        "attention_dropout": dropout,
    }
    config = ModernBertConfig(**(windows | special | dropouts | sizes))
    return ModernBertModel(config)


def backbone(kind: str, *, dropout: float = 0.0, seed: int = 0, **changes: Any) -> Backbone:
    if kind == "neobert":
        with torch.random.fork_rng(devices=()):
            sizes = {"vocab_size": 64, "hidden_size": WIDTH, "decoder_init_range": 0.4}
            model = tiny_neobert(**(sizes | changes)).double()
        if seed:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.copy_(parameter.roll(seed, 0))
        return NeoBERTBackbone(model)
    return PaddedBackbone(encoder(kind, dropout=dropout, seed=seed, **changes), pad_id=0)


def contextual(kind: str = "bert", *, dropout: float = 0.0, **settings: Any) -> Contextual:
    """A two-stage model in training mode, whose heads are far from their initial zeros."""
    config = ContextualConfig(**({"num_context": 4, "context_dropout": 0.0} | settings))
    model = Contextual(
        None if config.tied else backbone(kind, dropout=dropout, seed=1),
        backbone(kind, dropout=dropout),
        real_tokenizer(),
        config,
        prompts={},
        max_tokens=64,
        position_limit=64,
        name="tiny",
    ).double()
    with torch.random.fork_rng(devices=()), torch.no_grad():
        torch.manual_seed(3)
        for parameter in model.slots.parameters():
            parameter.add_(torch.randn_like(parameter))
    return model.train()
