"""``Embedder``: a backbone, a pooling and prompts; texts or tokens in, unit vectors out."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from embedkit.errors import UserError
from embedkit.models.backbones import Backbone, shape_of
from embedkit.models.contextual.context import Context
from embedkit.models.embedding_model import Role
from embedkit.models.encoding import embed_texts, without_dropout
from embedkit.models.pooling import identity_of_pooling, pooling_named
from embedkit.storage.hashing import sha256_of, sha256_of_json
from embedkit.tokens.batch import TokenBatch
from embedkit.tokens.tokenizer import Tokenize, identity_of


class Embedder(nn.Module):
    """An encoder that maps texts to unit vectors.

    Args:
        backbone: tokens to hidden states.
        tokenizer: with its own truncation and padding switched off.
        pooling: ``mean`` of the hidden states, ``cls``, the first one, or the name of a pooling
            that another distribution registers.
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
        backbone: Backbone,
        tokenizer: PreTrainedTokenizerBase,
        *,
        pooling: str,
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
        self.frozen: Context | None = None

    def forward(self, tokens: TokenBatch) -> Tensor:
        """Embed tokens. Shapes: B sequences of T tokens -> ``(B, D)``, unit-norm, fp32 or wider."""
        with torch.autocast(
            tokens.ids.device.type, dtype=self.autocast, enabled=self.autocast is not None
        ):
            hidden = self.backbone(tokens)
        pool = pooling_named(self.pooling)
        vectors = pool(hidden, tokens, include_prompt=self.include_prompt)
        wide = torch.promote_types(vectors.dtype, torch.float32)
        return F.normalize(vectors.to(wide), dim=-1)

    @torch.inference_mode()
    def encode(
        self,
        texts: str | Sequence[str],
        *,
        role: Role | None = None,
        prompt: str | None = None,
        context: Context | None = None,
        max_tokens: int | None = None,
        show_progress: bool = False,
    ) -> NDArray[np.float32]:
        """Embed texts in any number.

        Shapes: a list of n texts -> ``(n, D)``, one text -> ``(D,)``.

        Args:
            texts: a text or several.
            role: the model's prompt of that name stands before each text; by default none does.
            prompt: stands there instead.
            context: refused, since a model of one stage reads none.
            max_tokens: truncate texts to fewer tokens than ``self.max_tokens``.
            show_progress: draw a bar.

        Raises:
            UserError: something else than texts is given, or a context.
        """
        if context is not None:
            raise UserError(f"context: {self.name} has one stage and reads none; leave it out")
        prefix = self.prompts.get(role, "") if role and prompt is None else prompt or ""
        with without_dropout(self):
            return embed_texts(
                texts,
                prefix,
                self,
                Tokenize(self.tokenizer),
                width=self.width,
                max_tokens=min(max_tokens or self.max_tokens, self.max_tokens),
                device=self.device,
                show_progress=show_progress,
            )

    def encode_query(self, texts: str | Sequence[str]) -> NDArray[np.float32]:
        """Embed queries with the model's own prompt."""
        return self.encode(texts, role="query")

    def encode_document(self, texts: str | Sequence[str]) -> NDArray[np.float32]:
        """Embed documents with the model's own prompt."""
        return self.encode(texts, role="document")

    def save(self, folder: str | Path, *, card: str = "") -> None:
        """Write a sentence-transformers folder that opens without embedkit.

        Raises:
            UserError: ``folder`` holds something that embedkit did not write.
        """
        from embedkit.models.export import write_model

        write_model(self, Path(folder), card=card)

    @property
    def width(self) -> int:
        """Features of a vector, D."""
        return self.backbone.width

    @property
    def reads_context(self) -> bool:
        """Whether ``encode`` needs a ``context``: a model of one stage never does."""
        return False

    @property
    def positions_before_text(self) -> int:
        """Positions that every text costs besides its own tokens."""
        return 0

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
            "pooling": identity_of_pooling(self.pooling) or self.pooling,
            "include_prompt": self.include_prompt,
            "autocast": str(self.autocast),
            "max_tokens": self.max_tokens,
        }
        return sha256_of_json(settings, default=str)
