"""``Embedder``: a backbone, a pooling and prompts; texts or tokens in, unit vectors out."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from embedkit.models.backbones import Backbone, NeoBERTBackbone, shape_of
from embedkit.models.encoding import embed_texts, without_dropout
from embedkit.models.pooling import first_by_text, mean_by_text
from embedkit.storage.hashing import sha256_of, sha256_of_json
from embedkit.tokens.batch import TokenBatch
from embedkit.tokens.tokenizer import Tokenize, identity_of

Pooling = Literal["mean", "cls"]


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
            kept for evaluation and the export, since ``encode`` applies what it is told to.
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
        pool = first_by_text if self.pooling == "cls" else mean_by_text
        return F.normalize(pool(hidden, tokens, include_prompt=self.include_prompt), dim=-1)

    @torch.inference_mode()
    def encode(
        self, texts: str | Sequence[str], *, prompt: str = "", show_progress: bool = False
    ) -> NDArray[np.float32]:
        """Embed texts, each behind ``prompt``, in any number.

        Shapes: a list of n texts -> ``(n, D)``, one text -> ``(D,)``.

        Raises:
            UserError: something else than texts is given.
        """
        with without_dropout(self):
            return embed_texts(
                texts,
                prompt,
                self,
                Tokenize(self.tokenizer),
                width=self.backbone.width,
                max_tokens=self.max_tokens,
                device=self.device,
                show_progress=show_progress,
            )

    def encode_query(self, texts: str | Sequence[str]) -> NDArray[np.float32]:
        """Embed queries with the model's own prompt."""
        return self.encode(texts, prompt=self.prompts.get("query", ""))

    def encode_document(self, texts: str | Sequence[str]) -> NDArray[np.float32]:
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
            "config": shape_of(self.backbone.model),
            "tokenizer": identity_of(self.tokenizer),
            "prompts": self.prompts,
            "pooling": self.pooling,
            "include_prompt": self.include_prompt,
            "autocast": str(self.autocast),
            "max_tokens": self.max_tokens,
        }
        return sha256_of_json(settings, default=str)
