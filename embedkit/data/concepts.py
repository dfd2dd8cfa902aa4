"""Which concepts are held out: a property of their id alone, the same in every manifest."""

import hashlib

_KEY = b"embedkit: held-out concepts"


def is_held_out(concept: str | None, share: float) -> bool:
    """Whether the concept lies in the held-out ``share``; a smaller share is part of a larger."""
    return concept is not None and unit_hash(concept, _KEY) < share


def unit_hash(text: str, key: bytes) -> float:
    """A number in [0, 1) drawn by ``text``: as good as random, and the same everywhere."""
    return int.from_bytes(hashlib.blake2b(text.encode(), key=key, digest_size=6).digest()) / 2**48
