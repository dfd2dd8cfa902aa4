"""Texts as unit vectors on disk, kept in the cache under all that they depend on."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from embedkit.mining.corpus import Side
from embedkit.mining.settings import StoreType
from embedkit.mining.stages import stage
from embedkit.models.embedder import Embedder
from embedkit.storage import cache
from embedkit.storage.blocks import BlockFile, mapped
from embedkit.storage.hashing import sha256_of_json

_TEXTS = 2048
"""Encoded between two blocks on disk."""
_TYPES: dict[StoreType, type[np.generic]] = {"fp16": np.float16, "fp32": np.float32}
_FILE = "vectors"
FORMAT = 2
"""Changes with how vectors lie on disk: those of another format are not read."""


def stored_vectors(
    side: Side,
    embedder: Embedder,
    *,
    identity: str,
    prompt: str,
    max_tokens: int | None,
    store: StoreType,
    console: Console,
) -> NDArray[Any]:
    """The vectors of all texts of ``side``, ``(texts, D)``, memory-mapped; the first time, encode.

    A process that is killed leaves its whole blocks to the next, and damaged blocks are encoded
    again. Several may ask at a time: one encodes, the others wait.

    Args:
        side: the texts.
        embedder: the model.
        identity: its identity.
        prompt: put in front of each text.
        max_tokens: where to cut a text that the model would read further.
        store: the type on disk.
        console: where progress goes.
    """
    limit = min(max_tokens or embedder.max_tokens, embedder.max_tokens)
    parts = [FORMAT, side.identity, identity, prompt, limit, store, _TEXTS]
    key = sha256_of_json(parts)[:32]
    kind, width = np.dtype(_TYPES[store]), embedder.backbone.width

    def file(folder: Path) -> BlockFile:
        return BlockFile(folder / _FILE, kind, rows=len(side), width=width, block=_TEXTS)

    folder = cache.built(
        "vectors",
        key,
        lambda folder: _encode(side, embedder, prompt, limit, console, file(folder)),
        resumable=True,
        verified=lambda folder: file(folder).is_whole(),
    )
    return mapped(folder / _FILE, kind, rows=len(side), width=width)


def _encode(
    side: Side,
    embedder: Embedder,
    prompt: str,
    limit: int,
    console: Console,
    file: BlockFile,
) -> None:
    own_limit, embedder.max_tokens = embedder.max_tokens, limit
    try:
        with stage(console, f"encoding {side.name}", len(side), file.done()) as advance:
            for block in file.missing():
                # A block has the same texts after an interruption, so that every text is encoded
                # beside the same others and its vector is the same to the last bit.
                texts = side.texts(file.rows_of(block))
                file.write(block, embedder.encode(texts, prompt=prompt))
                advance(len(texts))
    finally:
        embedder.max_tokens = own_limit
