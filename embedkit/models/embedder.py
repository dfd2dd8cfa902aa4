"""``Embedder``: a backbone, a pooling and prompts, which map texts or tokens to unit vectors."""

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
    """Embedding model of one stage, which maps texts to unit vectors.

    Args:
        backbone: encoder that maps tokens to hidden states.
        tokenizer: tokenizer with truncation and padding switched off.
        pooling: ``mean`` of the hidden states, ``cls`` for the first hidden state, or the name of a
            pooling that another distribution registers.
        include_prompt: whether the prompt's tokens count in the pooling.
        prompts: literal prefixes by name, such as ``query`` and ``document``.
        max_tokens: length to which ``encode`` truncates texts, special tokens included.
        position_limit: length of the longest sequence that the backbone can read.
        name: name of the model in reports.
        autocast: dtype of the matrix products; ``None`` keeps the dtype of the weights.
        default_prompt_name: name of the prompt that sentence-transformers applies by default. It is
            kept for evaluation and export; ``encode`` ignores it.
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
        """Embed one text or a list of texts.

        Shapes: a list of n texts -> ``(n, D)``, one text -> ``(D,)``.

        Args:
            texts: one text, or a list of any number of texts.
            role: name of the model's prompt to put before each text; by default there is none.
            prompt: literal prefix of each text, used instead of the prompt of ``role``.
            context: must be ``None``, since a model of one stage reads no context.
            max_tokens: length to truncate texts to, at most ``self.max_tokens``.
            show_progress: whether to show a progress bar.

        Raises:
            UserError: ``texts`` holds something other than texts, or a context is given.
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
        """Embed queries with the model's prompt for queries."""
        return self.encode(texts, role="query")

    def encode_document(self, texts: str | Sequence[str]) -> NDArray[np.float32]:
        """Embed documents with the model's prompt for documents."""
        return self.encode(texts, role="document")

    def save(self, folder: str | Path, *, card: str = "") -> None:
        """Write the model as a sentence-transformers folder that opens without embedkit.

        Raises:
            UserError: ``folder`` holds files that embedkit did not write.
        """
        from embedkit.models.export import write_model

        write_model(self, Path(folder), card=card)

    @property
    def width(self) -> int:
        """Number of features of a vector, D."""
        return self.backbone.width

    @property
    def reads_context(self) -> bool:
        """Whether ``encode`` needs a ``context``: a model of one stage never does."""
        return False

    @property
    def positions_before_text(self) -> int:
        """Number of positions in front of every text: 0, since there is no context."""
        return 0

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def identity(self) -> str:
        """SHA-256 hash of all that a vector depends on: network, tokenizer and settings."""
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
