"""Floating point operations: the measured peak of the hardware, and the need of a training step."""

import time

import torch
from torch import Tensor

_SIZE = {"cpu": 1024, "cuda": 8192}
_SECONDS = 0.5
"""Least time to measure for, in seconds: long enough for clocks to settle, short beside any run."""


def matmul_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Return the best rate of several large square matrix products, in FLOPs per second.

    The measurement takes about a second.
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
    """Wait until ``device`` has finished all work submitted to it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def training_flops(
    lengths: Tensor, masked: int, *, matrices: int, decoder: int, layers: int, width: int
) -> float:
    """Return the FLOPs of a forward and a backward pass, as PaLM counts them (its appendix B).

    Every weight of the encoder costs six operations a token, every weight of the decoder six a
    masked token, and attention twelve a layer, hidden feature and pair of tokens that attend to
    each other. Recomputation does not count.

    Args:
        lengths: number of tokens of each sequence.
        masked: number of masked tokens, which alone reach the decoder.
        matrices: number of weights in the encoder's matrices, without embeddings.
        decoder: number of weights of the decoder.
        layers: number of layers of the encoder.
        width: number of features of a hidden state.
    """
    wide = lengths.double()
    products = 6 * matrices * float(wide.sum()) + 6 * decoder * masked
    return products + 12 * layers * width * float((wide**2).sum())
