"""``TextEncoder``, what evaluation needs of a model, and encoders around others.

``DistributedEncoder`` shares texts among ranks, ``CachedEncoder`` keeps vectors on disk, and
``Truncated`` shortens vectors.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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


class DistributedEncoder:
    """A model whose texts are encoded on all ranks, which take turns in its batches.

    Rank 0 calls ``encode`` inside ``run_on_main``. The other ranks are in the same call, where they
    encode what rank 0 sends them::

        encoder = DistributedEncoder(embedder)
        summary = encoder.run_on_main(lambda encoder: evaluate(encoder, tasks, output))

    Outside of it, every rank encodes its own texts alone.
    """

    def __init__(self, model: EmbeddingModel) -> None:
        self._model = model
        self.name, self.prompts = model.name, model.prompts
        self.default_prompt_name, self.facts = model.default_prompt_name, model.facts

    @property
    def identity(self) -> str:
        return self._model.identity

    def run_on_main(self, work: Callable[[Self], ResultT]) -> ResultT:
        """Call ``work`` on rank 0; return its result, or raise its ``UserError``, on all ranks."""
        return distributed.lead(lambda: work(self), self)

    def encode(
        self, texts: str | Sequence[str], *, prompt: str = "", context: Context | None = None
    ) -> NDArray[np.float32]:
        """Embed texts, in ``context`` if the model is contextual.

        Shapes: a list of n texts -> ``(n, D)``, one text -> ``(D,)``.
        """
        if isinstance(texts, str):
            return self.encode([texts], prompt=prompt, context=context)[0]
        encode = DistributedEncoder._encode_share
        vectors, rows = distributed.together(encode, self, list(texts), prompt, context)
        return vectors[rows.argsort()].cpu().numpy()

    def batches(self, texts: Sequence[str], *, prompt: str = "") -> list[Rows]:
        return self._model.batches(texts, prompt=prompt)

    def _encode_share(
        self, part: distributed.Part, texts: list[str], prompt: str, context: Context | None
    ) -> tuple[Tensor, Tensor]:
        """Return the vectors of every ``ranks``-th batch, and the rows of its texts."""
        if part.ranks == 1:  # All texts, in their order: nothing is gathered on the device.
            alone = np.asarray(self._model.encode(texts, prompt=prompt, context=context))
            return torch.from_numpy(alone), torch.arange(len(texts))
        # Batches have about as many tokens, those of the longest texts first.
        batches = self._model.batches(texts, prompt=prompt)[part.rank :: part.ranks]
        rows = np.concatenate([np.empty(0, np.int64), *batches])
        mine = [texts[row] for row in rows.tolist()]
        vectors = np.asarray(self._model.encode(mine, prompt=prompt, context=context))
        device = self._model.device
        return torch.from_numpy(vectors).to(device), torch.from_numpy(rows).to(device)


def _rounds(batches: Sequence[Rows], tokens: Rows) -> list[Rows]:
    """Join successive batches of texts with so many ``tokens`` into rounds of whole batches."""
    if not batches:
        return []
    most = _ROUND_TOKENS * (1 + distributed.helpers())
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
