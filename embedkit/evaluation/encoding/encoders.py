"""``TextEncoder``, what evaluation needs of a model, and encoders around others.

``DistributedEncoder`` shares texts among ranks, ``CachedEncoder`` keeps vectors on disk, and
``Truncated`` shortens vectors.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Event
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from embedkit import distributed
from embedkit.evaluation.encoding.vector_cache import VectorCache, keys_of
from embedkit.models.contextual.context import Context
from embedkit.models.embedding_model import EmbeddingModel, Facts
from embedkit.storage.hashing import sha256_of_text

_ROUND_TOKENS = 2**18
"""Estimated tokens that are encoded between two writes: seconds on a GPU, a minute on a CPU."""

ResultT = TypeVar("ResultT")


class TextEncoder(Protocol):
    """Interface that evaluation requires of a model."""

    @property
    def name(self) -> str: ...
    @property
    def identity(self) -> str:
        """Hash of all that a vector depends on: weights, pooling, precision, truncation."""

    @property
    def prompts(self) -> Mapping[str, str]:
        """Prefixes by side, task or type, as in sentence-transformers."""

    @property
    def default_prompt_name(self) -> str | None: ...
    @property
    def facts(self) -> Facts: ...
    def encode(self, texts: str | Sequence[str], *, prompt: str = "") -> NDArray[np.float32]:
        """Embed texts, each after ``prompt``, as vectors of unit norm.

        Shapes: a list of n texts -> ``(n, width)``, one text -> ``(width,)``.
        """


class CachedEncoder:
    """Encodes only texts that a cache does not hold, and adds their vectors round by round.

    The texts of a call must be distinct. The longest are encoded first, so that a batch too large
    for the memory fails at once and not after hours.
    """

    def __init__(self, encoder: TextEncoder, cache: VectorCache) -> None:
        self._encoder, self._cache = encoder, cache
        self.name, self.prompts = encoder.name, encoder.prompts
        self.default_prompt_name, self.identity = encoder.default_prompt_name, encoder.identity
        self.facts = encoder.facts

    def encode(self, texts: str | Sequence[str], *, prompt: str = "") -> NDArray[np.float32]:
        if isinstance(texts, str):
            return self.encode([texts], prompt=prompt)[0]
        if not texts:
            return self._encoder.encode([], prompt=prompt)
        keys = keys_of(texts)
        is_cached, cached = self._cache.find(self.identity, prompt, keys)
        rows, parts = [np.flatnonzero(is_cached)], [cached] if len(cached) else []
        missing = np.flatnonzero(~is_cached)
        for chosen in _rounds(estimated_tokens([texts[row] for row in missing.tolist()])):
            rows.append(missing[chosen])
            parts.append(self._encoder.encode([texts[r] for r in rows[-1].tolist()], prompt=prompt))
            self._cache.keep(self.identity, prompt, keys[rows[-1]], parts[-1])
        return np.concatenate(parts)[np.argsort(np.concatenate(rows))]


class Truncated:
    """The first dimensions of an encoder's vectors, scaled to unit norm (Matryoshka)."""

    def __init__(self, encoder: TextEncoder, dimensions: int) -> None:
        self._encoder, self._dimensions = encoder, dimensions
        self.name, self.prompts = f"{encoder.name}@{dimensions}", encoder.prompts
        self.default_prompt_name = encoder.default_prompt_name
        self.identity = sha256_of_text(f"{encoder.identity} {dimensions}")
        self.facts = replace(encoder.facts, width=dimensions)

    def encode(self, texts: str | Sequence[str], *, prompt: str = "") -> NDArray[np.float32]:
        vectors = self._encoder.encode(texts, prompt=prompt)[..., : self._dimensions]
        norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
        return vectors / np.maximum(norms, np.finfo(np.float32).tiny)


class EncodingFailedError(RuntimeError):
    """A rank failed to encode its share of texts, so that no rank has all vectors."""


class DistributedEncoder:
    """A model whose texts are encoded on all ranks, which get about as many tokens each.

    Rank 0 calls ``encode`` inside ``run_on_main``. The other ranks are in the same call, where they
    encode what rank 0 sends them::

        encoder = DistributedEncoder(embedder)
        summary = encoder.run_on_main(lambda encoder: evaluate(encoder, tasks, output))

    Outside of it, every rank encodes its own texts alone.
    """

    def __init__(self, model: EmbeddingModel) -> None:
        # Copies of an encoder share the event, which is set while the other ranks wait for texts.
        self._model, self._leading = model, Event()
        self.name, self.prompts = model.name, model.prompts
        self.default_prompt_name, self.facts = model.default_prompt_name, model.facts

    @property
    def identity(self) -> str:
        return self._model.identity

    def run_on_main(self, work: Callable[[Self], ResultT]) -> ResultT:
        """Call ``work`` on rank 0; return its result, or raise its ``UserError``, on all ranks."""

        def lead() -> ResultT:
            self._leading.set()
            try:
                return work(self)
            finally:
                self._leading.clear()
                distributed.on_main(_end)

        if distributed.world_size() == 1:
            return work(self)
        while not distributed.is_main() and (request := distributed.on_main(_end)) is not None:
            with suppress(EncodingFailedError):  # Rank 0 decides what becomes of the failure.
                self._encode_share(*request)
        return distributed.on_main(lead)

    def encode(
        self, texts: str | Sequence[str], *, prompt: str = "", context: Context | None = None
    ) -> NDArray[np.float32]:
        """Embed texts, in ``context`` if the model is contextual.

        Shapes: a list of n texts -> ``(n, D)``, one text -> ``(D,)``.
        """
        if isinstance(texts, str):
            return self.encode([texts], prompt=prompt, context=context)[0]
        if not self._leading.is_set():
            return np.asarray(self._model.encode(texts, prompt=prompt, context=context))
        request = (list(texts), prompt, context)
        distributed.on_main(lambda: request)
        return self._encode_share(*request)

    def _encode_share(
        self, texts: list[str], prompt: str, context: Context | None
    ) -> NDArray[np.float32]:
        """Encode this rank's share of the texts, and gather the vectors of all texts."""
        tokens = estimated_tokens(texts, self._model.max_tokens)
        tokens += self._model.positions_before_text
        shares = shares_by_tokens(tokens, distributed.world_size())
        mine = [texts[row] for row in shares[distributed.rank()].tolist()]
        device, error = self._model.device, None
        try:
            encoded = np.asarray(self._model.encode(mine, prompt=prompt, context=context))
            vectors = torch.from_numpy(encoded).to(device)
        except Exception as failure:  # The other ranks wait for this one.
            error = failure
        if distributed.any_rank(error is not None, device):
            raise EncodingFailedError(str(error or "on another rank")) from error
        gathered = distributed.gather(vectors)[0].cpu().numpy()
        return np.asarray(gathered[np.argsort(np.concatenate(shares))])


def shares_by_tokens(tokens: NDArray[np.int64], count: int) -> list[NDArray[np.int64]]:
    """Split rows among ``count`` ranks: texts of similar lengths, about as many tokens for each.

    Shapes: ``(texts,)`` to ``count`` arrays that together hold every row once.
    """
    order = np.argsort(-tokens, kind="stable")
    # The middle of a text decides which rank encodes it.
    middles = np.cumsum(tokens[order]) - tokens[order] / 2
    ends = np.searchsorted(middles, tokens.sum() * np.arange(1, count) / count, "right")
    return np.split(order, ends)


def estimated_tokens(texts: Sequence[str], limit: int | None = None) -> NDArray[np.int64]:
    """Estimate numbers of tokens, each at most ``limit``, from characters.

    Shapes: ``(len(texts),)``.
    """
    # An English token has four to five characters; two tokens open and close a sequence.
    lengths = np.array([len(text) for text in texts], dtype=np.int64) // 4 + 2
    return lengths if limit is None else np.minimum(lengths, limit)


def _rounds(tokens: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Split rows, sorted by length with the longest first, into rounds of ``_ROUND_TOKENS``."""
    order = np.argsort(-tokens, kind="stable")
    rounds = (np.cumsum(tokens[order]) - tokens[order]) // _ROUND_TOKENS
    return np.split(order, np.flatnonzero(np.diff(rounds)) + 1) if len(tokens) else []


def _end() -> Any:
    """Return the request that ends the loop of the other ranks."""
    return None
