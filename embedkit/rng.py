"""Randomness without state: every draw is a function of the numbers that name it."""

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 0xFFFF_FFFF_FFFF_FFFF
_ROUNDS = 6
_SORTED = 256
"""Largest size that is shuffled by sorting random numbers, which is faster there than a Feistel
network, and mixes better."""


def fold_in(*parts: int | str) -> int:
    """Return a 64-bit random key, derived from numbers and names that identify one draw.

    For example ``fold_in(seed, "dropout", step, rank, chunk)``. The key depends on every part and
    on their order.
    """
    state = _GOLDEN
    for part in parts:
        for word in _words(part):
            state = _mix_int(state ^ word)
    return state


def permuted(index: NDArray[np.int64], size: int, shuffle_key: int) -> NDArray[np.int64]:
    """Return the positions of ``index`` in a shuffle of ``range(size)``, computed per element.

    The shuffle is a bijection: a Feistel network over the next power of four, applied again until
    the value is inside ``range(size)`` (format-preserving encryption by cycle walking; Black and
    Rogaway, 2002). Memory does not grow with ``size``, so that an epoch of hundreds of millions of
    rows needs no stored order.
    """
    assert size > 0
    if size <= _SORTED:
        return np.argsort(_draws(size, shuffle_key))[index]
    half_bits = np.uint64(((size - 1).bit_length() + 1) // 2)
    round_keys = [np.uint64(fold_in(shuffle_key, number)) for number in range(_ROUNDS)]
    values = _feistel(index.astype(np.uint64), half_bits, round_keys)
    while (outside := values >= size).any():
        values[outside] = _feistel(values[outside], half_bits, round_keys)
    return values.astype(np.int64)


def uniform(count: int, draw_key: int) -> NDArray[np.float64]:
    """Return ``count`` uniform 53-bit numbers in [0, 1); a longer draw extends a shorter one."""
    return (_draws(count, draw_key) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _draws(count: int, draw_key: int) -> NDArray[np.uint64]:
    """Return the first ``count`` numbers of SplitMix64 from ``draw_key``; all are distinct."""
    steps = np.arange(1, count + 1, dtype=np.uint64)
    return _mix(steps * np.uint64(_GOLDEN) + np.uint64(draw_key & _MASK))


def _feistel(
    values: NDArray[np.uint64], half_bits: np.uint64, round_keys: list[np.uint64]
) -> NDArray[np.uint64]:
    low = (np.uint64(1) << half_bits) - np.uint64(1)
    left, right = values >> half_bits, values & low
    for round_key in round_keys:
        left, right = right, left ^ (_mix(right ^ round_key) & low)
    return (left << half_bits) | right


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finaliser of SplitMix64 (Steele, Lea and Flood, 2014) to every element."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def _mix_int(x: int) -> int:
    x = (x + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _words(part: int | str) -> list[int]:
    if isinstance(part, int):
        return [part & _MASK]
    data = part.encode()
    # The length comes first, since "ab", "c" and "a", "bc" would give the same key without it.
    return [len(data), *(int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8))]
