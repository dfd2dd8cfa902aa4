"""``TextEncoder``, what evaluation needs of a model, and encoders around others.

``DistributedEncoder`` shares texts among ranks, ``CachedEncoder`` keeps vectors on disk, and
``Truncated`` shortens vectors.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Event
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from embedkit import distributed
from embedkit.evaluation.encoding.vector_cache import Keys, VectorCache, keys_of
from embedkit.models.contextual.context import Context
from embedkit.models.embedding_model import EmbeddingModel, Facts
from embedkit.storage.hashing import sha256_of_text
from embedkit.tokens.text_batches import Rows, estimated_tokens

_ROUND_TOKENS = 2**18
"""Estimated tokens that each rank encodes between two writes: seconds on a GPU, a minute on a
CPU."""

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
        """Embed texts, each after ``prompt``.

        Shapes: a list of n texts -> ``(n, width)``, one text -> ``(width,)``.
        """

    def batches(self, texts: Sequence[str], *, prompt: str = "") -> list[Rows]:
        """Return the rows of each batch in which ``encode`` reads texts.

        A text's vector depends on the texts of its batch and on no others.
        """


class CachedEncoder:
    """Encodes only texts that a cache does not hold, and adds their vectors round by round.

    A vector is kept under its text and the texts of its batch, and batches are encoded whole:
    vectors are the same to the last bit, whatever the cache holds. The texts of a call must be
    distinct. The longest are encoded first, so that a batch too large for the memory fails at once
    and not after hours.
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
        batches = self.batches(texts, prompt=prompt)
        keys = _keys_within(batches, texts)
        found, cached = self._cache.find(self.identity, prompt, keys)
        whole = found.copy()
        for rows in batches:
            whole[rows] = found[rows].all()
        rows_of_parts, parts = [np.flatnonzero(whole)], [cached[whole[found]]]
        missing = [rows for rows in batches if not whole[rows[0]]]
        for rows in _rounds(missing, estimated_tokens(texts)):
            rows_of_parts.append(rows)
            parts.append(self._encoder.encode([texts[r] for r in rows.tolist()], prompt=prompt))
            self._cache.keep(self.identity, prompt, keys[rows], parts[-1])
        filled = [part for part in parts if len(part)]
        return np.concatenate(filled)[np.argsort(np.concatenate(rows_of_parts))]

    def batches(self, texts: Sequence[str], *, prompt: str = "") -> list[Rows]:
        return self._encoder.batches(texts, prompt=prompt)


class Truncated:
    """The first dimensions of an encoder's vectors (Matryoshka).

    As in sentence-transformers, they are not scaled to unit norm again.
    """

    def __init__(self, encoder: TextEncoder, dimensions: int) -> None:
        self._encoder, self._dimensions = encoder, dimensions
        self.name, self.prompts = f"{encoder.name}@{dimensions}", encoder.prompts
        self.default_prompt_name = encoder.default_prompt_name
        self.identity = sha256_of_text(f"{encoder.identity} cut to {dimensions}")
        self.facts = replace(encoder.facts, width=dimensions)

    def encode(self, texts: str | Sequence[str], *, prompt: str = "") -> NDArray[np.float32]:
        return self._encoder.encode(texts, prompt=prompt)[..., : self._dimensions]

    def batches(self, texts: Sequence[str], *, prompt: str = "") -> list[Rows]:
        return self._encoder.batches(texts, prompt=prompt)


class EncodingFailedError(RuntimeError):
    """A rank failed to encode its share of texts, so that no rank has all vectors."""


class DistributedEncoder:
    """A model whose texts are encoded on all ranks, which take turns in its batches.

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
                result = work(self)
            except Exception:  # A KeyboardInterrupt may come amid a collective: it ends the group.
                release()
                raise
            release()
            return result

        def release() -> None:
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

    def batches(self, texts: Sequence[str], *, prompt: str = "") -> list[Rows]:
        return self._model.batches(texts, prompt=prompt)

    def _encode_share(
        self, texts: list[str], prompt: str, context: Context | None
    ) -> NDArray[np.float32]:
        """Encode this rank's share of the batches, and gather the vectors of all texts."""
        # Ranks take turns: batches have about as many tokens, those of the longest texts first.
        batches, ranks = self._model.batches(texts, prompt=prompt), distributed.world_size()
        none = np.empty(0, np.int64)
        shares = [np.concatenate([none, *batches[rank::ranks]]) for rank in range(ranks)]
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


def _rounds(batches: Sequence[Rows], tokens: Rows) -> list[Rows]:
    """Join successive batches of texts with so many ``tokens`` into rounds of whole batches."""
    if not batches:
        return []
    most = _ROUND_TOKENS * distributed.world_size()
    sizes = np.array([tokens[rows].sum() for rows in batches])
    rounds = (np.cumsum(sizes) - sizes) // most
    starts = np.flatnonzero(np.diff(rounds, prepend=-1)).tolist()
    ends = [*starts[1:], len(batches)]
    return [np.concatenate(batches[start:end]) for start, end in zip(starts, ends, strict=True)]


def _keys_within(batches: Sequence[Rows], texts: Sequence[str]) -> Keys:
    """Return keys of the texts, each within its batch. Shapes: ``(texts, 2)``."""
    keys = keys_of(texts).copy()
    for rows in batches:
        digest = hashlib.blake2b(keys[rows].tobytes(), digest_size=16).digest()
        keys[rows] ^= np.frombuffer(digest, np.uint64)
    return keys


def _end() -> Any:
    """Return the request that ends the loop of the other ranks."""
    return None
