"""Tiny random folders in the layout of Qwen3-Embedding and EmbeddingGemma."""

from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import ByteLevelBPETokenizer, processors
from transformers import (
    Gemma3TextConfig,
    Gemma3TextModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

_TEXTS = [
    "amber birch, cedar; delta?",
    "Instruct: find it. query: task: search result | title: none",
]
_SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 96,
    # At the default of 0.02 all vectors of a random model are nearly one.
    "initializer_range": 0.2,
}


def write_qwen3(folder: Path) -> Path:
    """A causal decoder, pooled by the last token, which is the one that ends every text."""
    tokenizer = _tokenizer("$A <eos>", padding_side="left")
    # As in the release, whose end of text is also what it pads with.
    tokenizer.pad_token = tokenizer.eos_token
    config = Qwen3Config(**_SHAPE, vocab_size=len(tokenizer), tie_word_embeddings=True)
    _save(Qwen3ForCausalLM, config, tokenizer, folder / "encoder")
    modules = [Transformer(str(folder / "encoder")), Pooling(32, "lasttoken"), Normalize()]
    prompts = {"query": "Instruct: find it\nQuery:", "document": ""}
    SentenceTransformer(modules=modules, device="cpu", prompts=prompts).save(str(folder / "model"))
    return folder / "model"


def write_gemma3(folder: Path) -> Path:
    """A decoder that reads in both directions, pooled by the mean, with two Dense modules."""
    tokenizer = _tokenizer("<bos> $A <eos>", padding_side="right")
    config = Gemma3TextConfig(
        **_SHAPE,
        vocab_size=len(tokenizer),
        use_bidirectional_attention=True,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=8,
        pad_token_id=tokenizer.pad_token_id,
    )
    _save(Gemma3TextModel, config, tokenizer, folder / "encoder")
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(1)
        dense = [
            Dense(width, out, bias=False, activation_function=None)
            for width, out in ((32, 96), (96, 32))
        ]
    pooling = Pooling(32, "mean")
    modules = [Transformer(str(folder / "encoder")), pooling, *dense, Normalize()]
    prompts = {
        "query": "task: search result | query: ",
        "document": "title: none | text: ",
        "STS": "task: sentence similarity | query: ",
    }
    SentenceTransformer(modules=modules, device="cpu", prompts=prompts).save(str(folder / "model"))
    return folder / "model"


def _tokenizer(template: str, *, padding_side: str) -> PreTrainedTokenizerFast:
    special = ["<pad>", "<eos>", "<bos>"]
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(_TEXTS, vocab_size=320, special_tokens=special, show_progress=False)
    trained.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(name, trained.token_to_id(name)) for name in special]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        padding_side=padding_side,
        model_max_length=96,
    )


def _save(kind: type, config: object, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        kind(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
