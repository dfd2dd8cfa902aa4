"""``Embedder``: a backbone, a pooling and prompts; texts or tokens in, unit vectors out."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from embedkit.hashing import sha256_of
from embedkit.models.backbones import Backbone, NeoBERTBackbone, shape_of
from embedkit.tokenization import Tokenize, identity_of
from embedkit.tokens import TokenBatch, chunks_by_budget

Pooling = Literal["mean", "cls"]

_ENCODE_TOKENS = 16_384
"""Tokens of one forward when encoding texts."""
_ENCODE_TEXTS = 8_192
"""Texts tokenized and sorted by length at a time when encoding."""


class Embedder(nn.Module):
    """An encoder that maps texts to unit vectors.

    Args:
        backbone: tokens to hidden states.
        tokenizer: with its own truncation and padding switched off.
        pooling: the mean of the hidden states, or the first one.
        include_prompt: whether the prompt's tokens take part in the pooling.
        prompts: literal prefixes by name, ``query`` and ``document`` above all.
        max_tokens: where ``encode`` cuts a text, special tokens included.
        position_limit: the longest sequence that the backbone can read.
        name: what reports call the model.
        autocast: the type of the matrix products; ``None`` keeps that of the weights.
        default_prompt_name: the prompt that sentence-transformers applies where none is asked for;
            kept for the export, since ``encode`` applies what it is told to.
    """

    def __init__(
        self,
        backbone: Backbone | NeoBERTBackbone,
        tokenizer: PreTrainedTokenizerBase,
        *,
        pooling: Pooling,
        include_prompt: bool,
        prompts: Mapping[str, str],
        max_tokens: int,
        position_limit: int,
        name: str,
        autocast: torch.dtype | None = None,
        default_prompt_name: str | None = None,
    ) -> None:
        super().__init__()
        self.backbone, self.tokenizer = backbone, tokenizer
        self.pooling, self.include_prompt = pooling, include_prompt
        self.prompts, self.max_tokens = dict(prompts), max_tokens
        self.position_limit = position_limit
        self.name, self.autocast = name, autocast
        self.default_prompt_name = default_prompt_name

    def forward(self, tokens: TokenBatch) -> Tensor:
        """Embed tokens. Shapes: B sequences of T tokens -> ``(B, D)``, unit-norm, fp32 or wider."""
        with torch.autocast(
            tokens.ids.device.type, dtype=self.autocast, enabled=self.autocast is not None
        ):
            hidden = self.backbone(tokens)
        hidden = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        return F.normalize(self._pooled(hidden, tokens), dim=-1)

    @torch.inference_mode()
    def encode(
        self, texts: Sequence[str], *, prompt: str = "", show_progress: bool = False
    ) -> NDArray[np.float32]:
        """Embed texts, each behind ``prompt``, in any number. Shapes: ``(len(texts), D)``."""
        from rich.progress import track

        was_training = self.training
        self.eval()
        tokenize = Tokenize(self.tokenizer)
        vectors = np.empty((len(texts), self.backbone.width), dtype=np.float32)
        starts = range(0, len(texts), _ENCODE_TEXTS)
        for start in track(starts, "encode", disable=not show_progress, transient=True):
            tokens = tokenize(texts[start : start + _ENCODE_TEXTS], prompt, self.max_tokens)
            for rows in chunks_by_budget(tokens.lengths, _ENCODE_TOKENS):
                chunk = tokens.select(rows).to(self.device)
                vectors[start + rows.numpy()] = self(chunk).float().cpu().numpy()
        self.train(was_training)
        return vectors

    def encode_query(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed queries with the model's own prompt."""
        return self.encode(texts, prompt=self.prompts.get("query", ""))

    def encode_document(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed documents with the model's own prompt."""
        return self.encode(texts, prompt=self.prompts.get("document", ""))

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def identity(self) -> str:
        """SHA-256 of all that a vector depends on: network, tokenizer and how they are read."""
        settings = {
            "weights": sha256_of(self.state_dict()),
            "config": shape_of(self.backbone),
            "tokenizer": identity_of(self.tokenizer),
            "prompts": self.prompts,
            "pooling": self.pooling,
            "include_prompt": self.include_prompt,
            "autocast": str(self.autocast),
            "max_tokens": self.max_tokens,
        }
        described = json.dumps(settings, sort_keys=True, default=str)
        return hashlib.sha256(described.encode()).hexdigest()

    def _pooled(self, hidden: Tensor, tokens: TokenBatch) -> Tensor:
        if self.pooling == "cls":
            return hidden[self._firsts(tokens).to(hidden.device)]
        rows = torch.arange(len(tokens)).repeat_interleave(tokens.lengths)
        if not self.include_prompt:
            within = torch.arange(tokens.num_tokens) - tokens.offsets[rows]
            text = (within >= tokens.prompt_lengths[rows]).nonzero().squeeze(1)
            rows, hidden = rows[text], hidden[text.to(hidden.device)]
        # A text that its prompt has pushed out altogether has no token left, and a mean of zero.
        counts = torch.bincount(rows, minlength=len(tokens)).clamp(min=1)
        sums = hidden.new_zeros(len(tokens), hidden.shape[-1])
        sums = sums.index_add(0, rows.to(hidden.device), hidden)
        return sums / counts.to(hidden.device)[:, None]

    def _firsts(self, tokens: TokenBatch) -> Tensor:
        """Where each sequence's first token stands that is pooled, on the CPU."""
        starts = tokens.offsets[:-1]
        if self.include_prompt:
            return starts
        # As in sentence-transformers, also for a text that its prompt has pushed out altogether.
        behind = tokens.lengths > tokens.prompt_lengths
        return torch.where(behind, starts + tokens.prompt_lengths, starts)
