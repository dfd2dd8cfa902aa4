"""Unit vectors of texts on disk, cached under a hash of everything that they depend on."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.distributed.progress import track_progress
from embedkit.mining.corpus import Side
from embedkit.mining.settings import StoreType
from embedkit.models.embedder import Embedder
from embedkit.storage import cache
from embedkit.storage.blocks import BlockFile
from embedkit.storage.hashing import sha256_of_json

_TEXTS = 2048
"""Number of texts in a block."""
_TYPES: dict[StoreType, type[np.generic]] = {"fp16": np.float16, "fp32": np.float32}
FORMAT = 2
"""Number of the format on disk, which is part of the hash: other formats are not read."""


def stored_vectors(
    side: Side,
    embedder: Embedder,
    *,
    identity: str,
    prompt: str,
    max_tokens: int | None,
    store: StoreType,
) -> NDArray[Any]:
    """Return the vectors of all texts of ``side``, ``(texts, D)``, memory-mapped.

    They are encoded by the first call. A killed process leaves its finished blocks to the next
    one, and damaged blocks are encoded again. Of several processes one encodes and the others wait.
    ``identity`` is the model's own, which takes long to compute.
    """
    limit = min(max_tokens or embedder.max_tokens, embedder.max_tokens)
    shape = {"rows": len(side), "width": embedder.width, "block": _TEXTS}

    def vectors_in(folder: Path) -> BlockFile:
        return BlockFile(folder / "vectors", np.dtype(_TYPES[store]), **shape)

    def encode(folder: Path) -> None:
        file = vectors_in(folder)
        with track_progress(f"encoding {side.name}", len(side), file.done()) as advance:
            file.fill(
                file.missing(),
                lambda rows: embedder.encode(
                    side.texts(rows), prompt=prompt, max_tokens=limit, normalize_embeddings=True
                ),
                advance,
            )

    key = sha256_of_json([FORMAT, side.identity, identity, prompt, limit, store, _TEXTS])[:32]
    folder = cache.built(
        "vectors", key, encode, resumable=True, verified=lambda done: vectors_in(done).is_whole()
    )
    return vectors_in(folder).mapped()
