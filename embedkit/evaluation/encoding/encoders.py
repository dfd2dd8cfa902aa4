"""``TextEncoder``, what evaluation needs of a model, and what can be put around one."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embedkit.evaluation.encoding.vector_cache import VectorCache, keys_of
from embedkit.storage.hashing import sha256_of_text

_ROUND_TOKENS = 2**18
"""Estimated tokens that are encoded between two writes: seconds on a GPU, a minute on a CPU."""


class TextEncoder(Protocol):
    """What evaluation needs of a model."""

    @property
    def name(self) -> str:
        """What reports call it, such as its folder's name."""

    @property
    def identity(self) -> str:
        """A hash of all that its vectors depend on: weights, pooling, precision, cut-off."""

    @property
    def prompts(self) -> Mapping[str, str]:
        """The prefixes stored with it, by side, task or type, as sentence-transformers does."""

    @property
    def default_prompt_name(self) -> str | None:
        """The key of the prefix that it applies where none is asked for."""

    def encode(
        self, texts: str | Sequence[str], *, prompt: str = "", show_progress: bool = False
    ) -> NDArray[np.float32]:
        """Embed texts, each after ``prompt``, as float32 vectors of unit norm.

        Shapes: a list of n texts -> ``(n, width)``, one text -> ``(width,)``.
        """


class CachedEncoder:
    """An encoder that encodes only what a cache does not hold, and keeps it round by round.

    Texts are to be distinct. They are encoded longest first, so that a batch too large for the
    memory fails at once and not after hours.
    """

    def __init__(self, encoder: TextEncoder, cache: VectorCache) -> None:
        self._encoder, self._cache = encoder, cache
        self.name, self.prompts = encoder.name, encoder.prompts
        self.default_prompt_name = encoder.default_prompt_name
        self.identity = encoder.identity

    def encode(
        self, texts: str | Sequence[str], *, prompt: str = "", show_progress: bool = False
    ) -> NDArray[np.float32]:
        if isinstance(texts, str):
            return self.encode([texts], prompt=prompt, show_progress=show_progress)[0]
        keys = keys_of(texts)
        found, known = self._cache.find(self.identity, prompt, keys)
        parts, rows = [known], [np.flatnonzero(found)]
        missing = np.flatnonzero(~found)
        for chosen in _rounds(estimated_tokens([texts[row] for row in missing.tolist()])):
            part = missing[chosen]
            fresh = self._encoder.encode(
                [texts[row] for row in part.tolist()], prompt=prompt, show_progress=show_progress
            )
            self._cache.keep(self.identity, prompt, keys[part], fresh)
            parts.append(fresh)
            rows.append(part)
        filled = [part for part in parts if len(part)]
        if not filled:
            return self._encoder.encode([], prompt=prompt)
        return np.concatenate(filled)[np.argsort(np.concatenate(rows))]


class Truncated:
    """The first dimensions of an encoder's vectors, at unit norm again (Matryoshka)."""

    def __init__(self, encoder: TextEncoder, dimensions: int) -> None:
        self._encoder, self._dimensions = encoder, dimensions
        self.name, self.prompts = f"{encoder.name}@{dimensions}", encoder.prompts
        self.default_prompt_name = encoder.default_prompt_name
        self.identity = sha256_of_text(f"{encoder.identity} {dimensions}")

    def encode(
        self, texts: str | Sequence[str], *, prompt: str = "", show_progress: bool = False
    ) -> NDArray[np.float32]:
        whole = self._encoder.encode(texts, prompt=prompt, show_progress=show_progress)
        cut = whole[..., : self._dimensions]
        norms = np.linalg.norm(cut, axis=-1, keepdims=True)
        return cut / np.maximum(norms, np.finfo(np.float32).tiny)


def estimated_tokens(texts: Sequence[str], limit: int | None = None) -> NDArray[np.int64]:
    """Roughly how many tokens texts have, each at most ``limit``, without tokenizing them.

    Shapes: ``(len(texts),)``.
    """
    # An English token has four to five characters; two tokens open and close a sequence.
    lengths = np.array([len(text) for text in texts], dtype=np.int64) // 4 + 2
    return lengths if limit is None else np.minimum(lengths, limit)


def _rounds(tokens: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Rows in order of length, the longest first, some ``_ROUND_TOKENS`` at a time."""
    order = np.argsort(-tokens, kind="stable")
    rounds = (np.cumsum(tokens[order]) - tokens[order]) // _ROUND_TOKENS
    for first, last in _runs(rounds):
        yield order[first:last]


def _runs(values: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Where each run of equal values begins and ends."""
    ends = [*(np.flatnonzero(np.diff(values)) + 1), len(values)]
    begin = 0
    for end in ends:
        if end > begin:
            yield begin, end
        begin = end
