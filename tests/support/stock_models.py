"""Folders of models of many kinds, as stock sentence-transformers writes them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn

PROMPTS = {"query": "find: ", "document": "text: ", "topic": "what is this about? "}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"head": ["normalize"]},
    "no normalize": {},
    "cls": {"pooling": "cls"},
    "last token": {"pooling": "lasttoken", "head": ["normalize"]},
    "weighted mean": {"pooling": "weightedmean"},
    "dot": {"similarity_fn_name": "dot"},
    "euclidean": {"similarity_fn_name": "euclidean"},
    "manhattan": {"similarity_fn_name": "manhattan"},
    "default prompt": {"prompts": PROMPTS, "default_prompt_name": "topic"},
    "truncated": {"head": ["normalize"], "truncate_dim": 20},
    "dense": {"head": [{"bias": True, "activation_function": nn.Tanh()}]},
    "two dense": {"head": [{}, {"out_features": 24}, "normalize"]},
    "dense behind normalize": {"head": ["normalize", {"use_residual": True}]},
}
"""Settings by kind of model: the options of ``SentenceTransformer``, and its modules."""


def write_stock(encoder: str | Path, folder: Path, kind: str) -> Path:
    """Write a model of one of ``KINDS`` around an encoder; Dense modules have random weights."""
    options = dict(KINDS[kind])
    transformer = Transformer(str(encoder))
    width = int(transformer.get_embedding_dimension())
    pooling = Pooling(width, pooling_mode=options.pop("pooling", "mean"))
    head = _head(width, options.pop("head", ()))
    modules = [transformer, pooling, *head]
    SentenceTransformer(modules=modules, device="cpu", **options).save(str(folder))
    return folder


def _head(width: int, head: Sequence[Any]) -> list[nn.Module]:
    modules: list[nn.Module] = []
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        for settings in head:
            if settings == "normalize":
                modules.append(Normalize())
                continue
            stated = {"out_features": 48, "bias": False, "activation_function": None, **settings}
            modules.append(Dense(width, **stated))
            width = stated["out_features"]
    return modules
