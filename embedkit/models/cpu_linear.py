"""Linear layers by oneDNN on CPUs, for a model that reads many texts with the same weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_ROWS = 2048
"""Rows of an input for which oneDNN lays out a weight; inputs of other sizes fit it too."""


@contextmanager
def packed(model: nn.Module) -> Iterator[None]:
    """Have a model's fp32 linear layers on the CPU multiply by oneDNN, until the block is left.

    ``F.linear`` calls MKL, which on CPUs of other makers does not use their widest instructions.
    oneDNN does, and takes a weight that it has laid out once: the copies take as much memory as the
    weights, which must not change meanwhile. Results agree to rounding. Where torch has no oneDNN,
    where its use is switched off (``torch.backends.mkldnn``), under autocast, and where a gradient
    is needed, layers compute as always.
    """
    linear = (layer for layer in model.modules() if isinstance(layer, nn.Linear))
    layers = [layer for layer in linear if _can_be_packed(layer)]
    try:
        for layer in layers:
            weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), _ROWS)
            layer.forward = partial(_forward, layer, weight)  # type: ignore[method-assign]
        yield
    finally:
        for layer in layers:
            # The method of the class is found again.
            vars(layer).pop("forward", None)


def _can_be_packed(layer: nn.Linear) -> bool:
    """Return whether a layer is a plain linear one whose weights oneDNN can take."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    plain = type(layer) is nn.Linear and "forward" not in vars(layer)
    return plain and layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32


def _forward(layer: nn.Linear, weight: Tensor, x: Tensor) -> Tensor:
    if torch.is_grad_enabled() or x.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
        return F.linear(x, layer.weight, layer.bias)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, layer.bias, "none", [], "")
    return product
