"""``EmbeddingModel``: what every model offers that maps texts to vectors, in one stage or two."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from embedkit.models.contextual.context import Context

Role = Literal["query", "document"]
"""What a text is in a search; the model's prompt of that name stands before it."""


class EmbeddingModel(Protocol):
    """A model of one stage (``Embedder``) or two (``Contextual``): an ``nn.Module`` on a device."""

    name: str
    """What reports call the model."""
    tokenizer: PreTrainedTokenizerBase
    prompts: dict[str, str]
    """Literal prefixes by name, ``query`` and ``document`` above all."""
    max_tokens: int
    """The length that ``encode`` truncates texts to, special tokens included."""
    position_limit: int
    """The longest text that the model can read, in tokens."""
    autocast: torch.dtype | None
    """The type of the matrix products; ``None`` keeps that of the weights."""
    frozen: Context | None
    """A context that ``encode`` takes where none is given; ``None`` for a model of one stage."""

    @property
    def default_prompt_name(self) -> str | None:
        """The prompt that sentence-transformers and mteb apply where none is asked for."""
        ...

    @property
    def width(self) -> int:
        """Features of a vector, D."""
        ...

    @property
    def device(self) -> torch.device: ...

    def to(self, device: torch.device) -> Self:
        """Move the model to ``device``."""
        ...

    @property
    def identity(self) -> str:
        """SHA-256 of all that a vector depends on beside its text and context."""
        ...

    @property
    def reads_context(self) -> bool:
        """Whether ``encode`` needs a ``context``."""
        ...

    @property
    def positions_before_text(self) -> int:
        """Positions that every text costs besides its own tokens."""
        ...

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

        Shapes: a list of n texts -> ``(n, D)``, one text -> ``(D,)``; unit-norm, fp32.

        Args:
            texts: a text or several.
            role: its prompt, if the model has one, stands before each text.
            prompt: stands there instead.
            context: the documents that a model of two stages reads beside each text.
            max_tokens: truncate texts to fewer tokens than the model's own ``max_tokens``.
            show_progress: draw a bar.

        Raises:
            UserError: something else than texts is given, or a context is missing or not this
                model's.
        """
        ...

    def save(self, folder: str | Path, *, card: str = "") -> None:
        """Write a folder that sentence-transformers opens, whole or not at all.

        Raises:
            UserError: ``folder`` holds something that embedkit did not write.
        """
        ...
