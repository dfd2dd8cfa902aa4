"""Floating point operations: the measured peak of the hardware, and the need of a training step."""

import time

import torch
from torch import Tensor

_SECONDS = 0.5
"""Least time to measure for, in seconds: long enough for clocks to settle, short beside any run."""


def matmul_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Return the best rate of several large square matrix products, in FLOPs per second.

    The measurement takes about a second.
    """
    size = 8192 if device.type == "cuda" else 1024
    left, right, out = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(3))
    torch.mm(left, right, out=out)
    seconds: list[float] = []
    while sum(seconds) < _SECONDS:
        wait(device)
        began = time.perf_counter()
        torch.mm(left, right, out=out)
        wait(device)
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / min(seconds)


def wait(device: torch.device) -> None:
    """Wait until ``device`` has finished all work submitted to it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def training_flops(
    lengths: Tensor, masked: int, *, matrices: int, decoder: int, layers: int, width: int
) -> float:
    """Return the FLOPs of a forward and a backward pass, as PaLM counts them (its appendix B).

    Every weight in the encoder's ``matrices``, which leaves out embeddings, costs six operations a
    token, every weight of the ``decoder`` six a masked token, and attention twelve a layer, hidden
    feature (``width``) and pair of tokens that attend to each other. Recomputation does not count.

    Shapes: ``lengths`` ``(B,)``, the number of tokens of each sequence.
    """
    wide = lengths.double()
    products = 6 * matrices * float(wide.sum()) + 6 * decoder * masked
    return products + 12 * layers * width * float((wide**2).sum())
