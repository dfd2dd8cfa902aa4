"""What the hardware can do and what a model asks of it: matrix products and their peak."""

import time

import torch
from torch import Tensor

_SIZE = {"cpu": 1024, "cuda": 8192}
_SECONDS = 0.5
"""Of measuring, at least: long enough for clocks to settle, short beside any run."""


def matmul_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Floating point operations a second of one large square matrix product, the best of several.

    Takes about a second.
    """
    size = _SIZE.get(device.type, 1024)
    left, right = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(2))
    out = left @ right
    best, spent = float("inf"), 0.0
    while spent < _SECONDS:
        wait(device)
        began = time.perf_counter()
        torch.mm(left, right, out=out)
        wait(device)
        seconds = time.perf_counter() - began
        best, spent = min(best, seconds), spent + seconds
    return 2 * size**3 / best


def wait(device: torch.device) -> None:
    """Until ``device`` has done all that it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def training_flops(
    lengths: Tensor, masked: int, *, matrices: int, decoder: int, layers: int, width: int
) -> float:
    """Floating point operations of a forward and a backward, as PaLM counts them (its appendix B).

    Six for every weight and token, of the decoder for masked tokens only, and twelve for every
    layer, width and pair of tokens that attend to each other. Recomputation does not count.

    Args:
        lengths: tokens of each sequence.
        masked: tokens that reach the decoder.
        matrices: weights of the encoder's matrices, without embeddings.
        decoder: weights of the decoder.
        layers: of the encoder.
        width: of a hidden state.
    """
    wide = lengths.double()
    products = 6 * matrices * float(wide.sum()) + 6 * decoder * masked
    return products + 12 * layers * width * float((wide**2).sum())
