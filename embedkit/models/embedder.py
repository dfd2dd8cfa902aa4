"""``Embedder``: a backbone, a pooling, a head and prompts, which map texts or tokens to vectors."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from embedkit.errors import UserError
from embedkit.models.backbones import Backbone, shape_of
from embedkit.models.contextual.context import Context
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.models.head import Head, UnitNorm
from embedkit.models.pooling import identity_of_pooling, pooling_named
from embedkit.storage.hashing import sha256_of, sha256_of_json
from embedkit.tokens.batch import TokenBatch
from embedkit.tokens.tokenizer import identity_of


class Embedder(EmbeddingModel):
    """Embedding model of one stage.

    Args:
        backbone: encoder that maps tokens to hidden states.
        tokenizer: tokenizer with truncation and padding switched off.
        pooling: one of ``STOCK_POOLINGS``, such as ``mean`` of the hidden states, or the name of a
            pooling that another distribution registers.
        include_prompt: whether the prompt's tokens count in the pooling.
        head: modules behind the pooling; by default vectors are scaled to unit norm.
        shared: settings of every ``EmbeddingModel``.
    """

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: PreTrainedTokenizerBase,
        *,
        pooling: str,
        include_prompt: bool,
        head: Head | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(tokenizer, **shared)
        self.backbone, self.pooling, self.include_prompt = backbone, pooling, include_prompt
        self.head = Head(UnitNorm()) if head is None else head

    def forward(self, tokens: TokenBatch) -> Tensor:
        """Embed tokens. Shapes: B sequences of T tokens -> ``(B, E)``, fp32 or wider."""
        with self._precision():
            hidden = self.backbone(tokens)
        pool = pooling_named(self.pooling)
        vectors = pool(hidden, tokens, include_prompt=self.include_prompt)
        wide = torch.promote_types(vectors.dtype, torch.float32)
        projected: Tensor = self.head(vectors.to(wide))
        return projected

    def _reader(self, context: Context | None) -> Callable[[TokenBatch], Tensor]:
        if context is not None:
            raise UserError(f"context: {self.name} has one stage and reads none; leave it out")
        return self

    def encode_query(self, texts: str | Sequence[str]) -> NDArray[np.float32]:
        """Embed queries with the model's prompt for queries."""
        return self.encode(texts, role="query")

    def encode_document(self, texts: str | Sequence[str]) -> NDArray[np.float32]:
        """Embed documents with the model's prompt for documents."""
        return self.encode(texts, role="document")

    def save(self, folder: str | Path, *, card: str = "") -> None:
        from embedkit.models.export import write_model

        write_model(self, Path(folder), card=card)

    @property
    def width(self) -> int:
        whole = self.head.width(self.backbone.width)
        return min(self.truncate_dim or whole, whole)

    @property
    def is_unit_norm(self) -> bool:
        return self.head.is_unit_norm and self.truncate_dim is None

    @property
    def identity(self) -> str:
        settings = {
            "weights": sha256_of(self.state_dict()),
            "config": shape_of(self.backbone.model),
            "tokenizer": identity_of(self.tokenizer),
            "prompts": self.prompts,
            "pooling": identity_of_pooling(self.pooling) or self.pooling,
            "include_prompt": self.include_prompt,
            "autocast": str(self.autocast),
            "max_tokens": self.max_tokens,
            "head": self.head.described,
            "similarity": self.similarity,
            "truncate_dim": self.truncate_dim,
        }
        # Only where it matters, so that most hashes equal those of earlier versions.
        if self.backbone.reads_token_types:
            settings["token_types"] = 0
        return sha256_of_json(settings, default=str)
