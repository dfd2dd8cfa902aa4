"""``EmbeddingModel``: interface of all models that map texts to vectors, in one stage or two."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedTokenizerBase

from embedkit.models.contextual.context import Context

Role = Literal["query", "document"]
"""Role of a text in retrieval, which selects the model's prompt of that name."""


class EmbeddingModel(Protocol):
    """Interface of a model of one stage (``Embedder``) or two (``Contextual``), both modules."""

    name: str
    """Name of the model in reports."""
    tokenizer: PreTrainedTokenizerBase
    prompts: dict[str, str]
    """Literal prefixes by name, such as ``query`` and ``document``."""
    pooling: str
    """Pooling of token states: ``mean``, ``cls`` or the name of another distribution's."""
    default_prompt_name: str | None
    """Name of the prompt that sentence-transformers and mteb apply by default."""
    max_tokens: int
    """Length to which ``encode`` truncates texts, special tokens included."""
    position_limit: int
    """Length of the longest text that the model can read, in tokens."""
    autocast: torch.dtype | None
    """Dtype of the matrix products; ``None`` keeps the dtype of the weights."""
    frozen: Context | None
    """Context that ``encode`` uses by default; ``None`` for a model of one stage."""

    @property
    def width(self) -> int:
        """Number of features of a vector, D."""
        ...

    @property
    def device(self) -> torch.device:
        assert isinstance(self, nn.Module)
        return next(self.parameters()).device

    def to(self, device: torch.device) -> Self:
        """Move the model to ``device``."""
        ...

    @property
    def identity(self) -> str:
        """SHA-256 hash of all that a vector depends on besides its text and context."""
        ...

    @property
    def reads_context(self) -> bool:
        """Whether ``encode`` needs a ``context``, as a model of two stages without a frozen one."""
        ...

    @property
    def positions_before_text(self) -> int:
        """Number of positions in front of every text: context slots and soft prompts, if any."""
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
        """Embed one text or a list of texts.

        Shapes: a list of n texts -> ``(n, D)``, one text -> ``(D,)``; unit-norm, fp32.

        Args:
            texts: one text, or a list of any number of texts.
            role: name of the model's prompt, if it has one, to put before each text. Without a role
                a model of one stage uses no prompt, and a model of two stages that for documents.
            prompt: literal prefix of each text, used instead of the prompt of ``role``.
            context: embedded documents that a model of two stages reads in front of each text; by
                default ``frozen``. A model of one stage takes none.
            max_tokens: length to truncate texts to, at most the model's ``max_tokens``.
            show_progress: whether to show a progress bar.

        Raises:
            UserError: ``texts`` holds something other than texts, ``role`` or ``max_tokens`` is
                wrong, or a context is missing, was made by another model, or is given to a model
                of one stage.
        """
        ...

    def save(self, folder: str | Path, *, card: str = "") -> None:
        """Write a folder that sentence-transformers opens; a crash leaves no partial folder.

        A folder of two stages opens with ``trust_remote_code=True``.

        Raises:
            UserError: ``folder`` holds files that embedkit did not write.
        """
        ...
