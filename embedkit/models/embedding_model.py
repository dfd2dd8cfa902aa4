"""``EmbeddingModel``: base class of all models that map texts to vectors, in one stage or two."""

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from embedkit.errors import UserError
from embedkit.models.contextual.context import Context
from embedkit.models.settings import Similarity
from embedkit.models.trained_prompts import TrainedPrompts
from embedkit.tokens.batch import TokenBatch, chunks_by_budget
from embedkit.tokens.prompts import SIDES
from embedkit.tokens.text_batches import Rows, estimated_tokens, one_ahead, text_batches
from embedkit.tokens.tokenizer import Tokenize

Role = Literal["query", "document"]
"""Role of a text in retrieval, which selects the model's prompt of that name."""
_BATCH_TOKENS = 16_384
"""Estimated number of tokens in a batch of texts."""
_MOST_TOKENS = 2 * _BATCH_TOKENS
"""Largest number of tokens in one forward pass; only texts in scripts whose characters are tokens
have batches that are longer."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Properties of a model that scores and reports state beside its name."""

    parameters: int
    memory: int
    """Bytes of all parameters."""
    width: int
    """Number of dimensions of a vector."""
    max_tokens: int
    """Length to which texts are truncated, special tokens included."""
    similarity: Similarity = "cosine"
    """Measure by which vectors are compared."""


class EmbeddingModel(nn.Module, ABC):
    """Base class of models of one stage (``Embedder``) and of two (``Contextual``).

    Args:
        tokenizer: tokenizer with truncation and padding switched off.
        name: name of the model in reports.
        prompts: literal prefixes by name, such as ``query`` and ``document``.
        max_tokens: length to which ``encode`` truncates texts, special tokens included.
        position_limit: length of the longest text that the model can read, in tokens.
        autocast: dtype of the matrix products; ``None`` keeps the dtype of the weights.
        default_prompt_name: name of the prompt of texts without a role, as in
            sentence-transformers and mteb.
        trained_prompts: prompts of the training; ``None`` for a model whose folder does not record
            them.
        similarity: measure by which vectors are compared.
        truncate_dim: number of first features that ``encode`` keeps; ``None`` keeps all.
        frozen: context that ``encode`` uses by default; ``None`` for a model of one stage.
    """

    pooling: str
    """Pooling of token states: one of ``STOCK_POOLINGS`` or the name of another distribution's."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str,
        prompts: Mapping[str, str],
        max_tokens: int,
        position_limit: int,
        autocast: torch.dtype | None = None,
        default_prompt_name: str | None = None,
        trained_prompts: TrainedPrompts | None = None,
        similarity: Similarity = "cosine",
        truncate_dim: int | None = None,
        frozen: Context | None = None,
    ) -> None:
        super().__init__()
        self.tokenizer, self.name, self.autocast = tokenizer, name, autocast
        self.prompts, self.default_prompt_name = dict(prompts), default_prompt_name
        self.trained_prompts, self.frozen = trained_prompts, frozen
        self.max_tokens, self.position_limit = max_tokens, position_limit
        self.similarity, self.truncate_dim = similarity, truncate_dim

    @property
    @abstractmethod
    def width(self) -> int:
        """Number of features of a vector of ``encode``, D."""

    @property
    @abstractmethod
    def is_unit_norm(self) -> bool:
        """Whether every vector of ``encode`` has unit norm."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """SHA-256 hash of all that a vector depends on besides its text, its context and which of
        the prompts is chosen, be it by ``default_prompt_name``.
        """

    @property
    def positions_before_text(self) -> int:
        """Number of positions in front of every text: context slots and soft prompts, if any."""
        return 0

    @property
    def facts(self) -> Facts:
        parameters = list(self.parameters())
        return Facts(
            parameters=sum(parameter.numel() for parameter in parameters),
            memory=sum(parameter.nbytes for parameter in parameters),
            width=self.width,
            max_tokens=self.max_tokens,
            similarity=self.similarity,
        )

    @property
    def vector_dtype(self) -> np.dtype[Any]:
        """Type to which ``encode`` rounds vectors, as sentence-transformers does: fp16 if the model
        computes in fp16, else fp32.
        """
        return np.dtype(np.float16 if self.autocast is torch.float16 else np.float32)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @torch.inference_mode()
    def encode(
        self,
        texts: str | Sequence[str],
        *,
        role: Role | None = None,
        prompt: str | None = None,
        context: Context | None = None,
        max_tokens: int | None = None,
        normalize_embeddings: bool = False,
        show_progress: bool = False,
    ) -> NDArray[np.float32]:
        """Embed one text or a list of texts, as sentence-transformers does.

        Shapes: a list of n texts -> ``(n, D)``, one text -> ``(D,)``; fp32, rounded to fp16 if the
        model computes in fp16.

        Args:
            texts: one text, or a list of any number of texts.
            role: name of the model's prompt, if it has one, to put before each text. Without a role
                a model of one stage uses its default prompt, if it has one, and a model of two
                stages that for documents.
            prompt: literal prefix of each text, used instead of the prompt of ``role``. A warning
                names one that the training of an exported model never had.
            context: embedded documents that a model of two stages reads in front of each text; by
                default ``frozen``. A model of one stage takes none.
            max_tokens: length to truncate texts to, at most the model's ``max_tokens``.
            normalize_embeddings: whether to scale vectors to unit norm also if the model does not.
            show_progress: whether to show a progress bar.

        Raises:
            UserError: ``texts`` holds something other than texts, ``role`` or ``max_tokens`` is
                wrong, the prompt leaves no room for a text, or a context is missing, was made by
                another model, or is given to a model of one stage.
        """
        embed = self._reader(context)
        vectors = self._embed(
            texts,
            self._prompt_of(role) if prompt is None else prompt,
            embed,
            side=role,
            max_tokens=max_tokens,
            overhead=self.positions_before_text,
            normalize=normalize_embeddings and not self.is_unit_norm,
            show_progress=show_progress,
        )
        return vectors.astype(self.vector_dtype, copy=False).astype(np.float32, copy=False)

    @abstractmethod
    def _reader(self, context: Context | None) -> Callable[[TokenBatch], Tensor]:
        """Return the function that embeds tokens in a context."""

    def batches(self, texts: Sequence[str], *, prompt: str = "") -> list[Rows]:
        """Return the rows of each batch in which ``encode`` reads texts after ``prompt``.

        A vector depends on its batch and on no other texts: whole batches encoded in a call of
        their own have the same vectors to the last bit.
        """
        return self._batches(texts, prompt, self.max_tokens, self.positions_before_text)

    @abstractmethod
    def save(self, folder: str | Path, *, card: str = "") -> None:
        """Write a folder that sentence-transformers opens; a crash leaves no partial folder.

        A folder of two stages opens with ``trust_remote_code=True``.

        Raises:
            UserError: ``folder`` holds files that embedkit did not write.
        """

    def _embed(
        self,
        texts: str | Sequence[str],
        prompt: str,
        embed: Callable[[TokenBatch], Tensor],
        *,
        max_tokens: int | None = None,
        side: str | None = None,
        overhead: int = 0,
        normalize: bool = False,
        show_progress: bool,
    ) -> NDArray[np.float32]:
        """Return the vectors that ``embed`` makes of the tokens of texts, in evaluation mode.

        ``side`` is ``query`` or ``document`` if it is known, ``overhead`` is the number of
        positions in front of every text, and ``normalize`` scales vectors to unit norm; the other
        arguments and the errors are those of ``encode``.
        """
        from rich.progress import track

        listed = _listed(texts)
        if max_tokens is not None and max_tokens < 1:
            raise UserError(f"max_tokens = {max_tokens}: pass a number of tokens of 1 or more")
        limit = self.max_tokens if max_tokens is None else min(max_tokens, self.max_tokens)
        if self.trained_prompts is not None:
            reading = (side if side in SIDES else "text", prompt)
            self.trained_prompts.warn(self.name, [reading])
        tokenize, was_training = Tokenize(self.tokenizer), self.training
        tokenize.check_room(prompt, limit, f"{self.name}: max_tokens")
        vectors = np.empty((len(listed), self.width), dtype=np.float32)
        batches = self._batches(listed, prompt, limit, overhead)

        def tokens_of(rows: Rows) -> TokenBatch:
            return tokenize([listed[row] for row in rows.tolist()], prompt, limit)

        self.eval()
        try:
            tokenized = one_ahead(tokens_of, batches)
            shown = track(batches, "encode", disable=not show_progress, transient=True)
            for rows, tokens in zip(shown, tokenized, strict=True):
                for chunk in chunks_by_budget(tokens.lengths + overhead, _MOST_TOKENS):
                    embedded = embed(tokens.select(chunk).to(self.device))[:, : self.width]
                    if normalize:
                        embedded = F.normalize(embedded, dim=-1)
                    vectors[rows[chunk.numpy()]] = embedded.float().cpu().numpy()
        finally:
            self.train(was_training)
        return vectors[0] if isinstance(texts, str) else vectors

    def _batches(self, texts: Sequence[str], prompt: str, limit: int, overhead: int) -> list[Rows]:
        lengths = np.minimum(estimated_tokens(texts) + len(prompt) // 4, limit) + overhead
        return text_batches(texts, lengths, _BATCH_TOKENS)

    def _prompt_of(self, role: str | None) -> str:
        """Return the prompt that the model stores for a role, "" if it stores none."""
        if role is None:
            return self.prompts.get(self.default_prompt_name or "", "")
        if role not in get_args(Role) and role not in self.prompts:
            known = ", ".join(dict.fromkeys([*get_args(Role), *self.prompts]))
            raise UserError(f"role = {role!r}: {self.name} knows {known}")
        return self.prompts.get(role, "")

    def _precision(self) -> torch.autocast:
        kind = self.device.type
        return torch.autocast(kind, dtype=self.autocast, enabled=self.autocast is not None)


def _listed(texts: str | Sequence[str]) -> list[str]:
    """Return ``texts`` as a list; raise UserError if it is not a text or a list of texts."""
    if isinstance(texts, str):
        return [texts]
    if isinstance(texts, bytes) or not isinstance(texts, Sequence | np.ndarray):
        raise UserError(f"texts = {reprlib.repr(texts)}: pass a str or a list of str")
    listed = list(texts)
    for row, text in enumerate(listed):
        if not isinstance(text, str):
            raise UserError(f"texts[{row}] = {reprlib.repr(text)}: every text must be a str")
    return listed
