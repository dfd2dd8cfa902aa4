"""NeoBERTs small enough to export in a test, with the tokenizer of MiniLM."""

from pathlib import Path
from typing import Any

import torch
from support.tiny_bert import real_tokenizer
from transformers import PreTrainedModel

from embedkit.models.neobert import NeoBERTConfig, NeoBERTForMaskedLM, NeoBERTModel

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
ABLATIONS: dict[str, dict[str, str]] = {
    "position": {"position": "absolute"},
    "hidden_act": {"hidden_act": "gelu"},
    "norm": {"norm": "layernorm"},
}


def tiny_config(**changes: Any) -> NeoBERTConfig:
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 72,
        "max_position_embeddings": 128,
        # At the defaults of 0.02 all vectors of a random model are nearly one.
        "embedding_init_range": 1.0,
        "decoder_init_range": 0.5,
    }
    return NeoBERTConfig(**(sizes | changes))


def tiny_neobert(**changes: Any) -> NeoBERTModel:
    """Two random layers, the same at every call, with norms that are not all ones."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return _shaken(NeoBERTModel(tiny_config(**changes)))


def tiny_masked_lm(**changes: Any) -> NeoBERTForMaskedLM:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return _shaken(NeoBERTForMaskedLM(tiny_config(**changes)))


def _shaken(model: Any) -> Any:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model.eval()


def write_with_tokenizer(model: PreTrainedModel, folder: Path) -> Path:
    """Save ``model`` as transformers does, and a tokenizer that claims 512 tokens beside it."""
    model.save_pretrained(folder)
    tokenizer = real_tokenizer()
    tokenizer.model_max_length = 512
    tokenizer.save_pretrained(folder)
    return folder
