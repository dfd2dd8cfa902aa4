"""Decides which concepts are held out, by their id alone and so alike in every manifest."""

import hashlib
from typing import Literal

from embedkit.data.manifests.manifest import Description, Manifest

_KEY = b"embedkit: held-out concepts"

Split = Literal["train", "held_out"]


def splits(held_out: object) -> tuple[Split, ...]:
    """Return the splits of a source, whose description may say what is ``held_out``."""
    return ("train", "held_out") if held_out else ("train",)


def held_out_share(description: Description) -> float | None:
    """Return the share of concepts that a source holds out, or ``None`` for none."""
    held_out = description.held_out if isinstance(description, Manifest) else None
    return held_out.share if held_out else None


def is_held_out(concept: str | None, share: float | None) -> bool:
    """Whether the concept lies in the held-out ``share``; a smaller share is part of a larger."""
    return concept is not None and share is not None and unit_hash(concept, _KEY) < share


def unit_hash(text: str, key: bytes) -> float:
    """Return a number in [0, 1) that looks random, and depends on ``text`` and ``key`` alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(), key=key, digest_size=6).digest()) / 2**48
