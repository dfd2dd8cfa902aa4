"""Rotary positions on interleaved pairs, computed from position numbers in every forward."""

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


def frequencies(config: Any, dtype: torch.dtype) -> tuple[Tensor, float]:
    """Radians per position of each pair, and what cosine and sine are multiplied by.

    Shapes: ``(head_dim // 2,)``, on the CPU.
    """
    rope = config.rope_parameters
    if rope["rope_type"] == "yarn":
        stretched, scale = ROPE_INIT_FUNCTIONS["yarn"](config)
        return stretched.to(dtype), scale
    exponents = torch.arange(0, config.head_dim, 2, dtype=dtype) / config.head_dim
    return 1.0 / rope["rope_theta"] ** exponents, 1.0


def cos_sin(config: Any, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every angle.

    No table is kept: a sequence may be of any length, and there is no buffer to load.

    Shapes: positions ``(T,)`` -> two of ``(T, 1, head_dim // 2)``, which fit all heads.
    """
    radians, scale = frequencies(config, dtype)
    angles = positions.to(dtype)[:, None, None] * radians.to(positions.device)
    return angles.cos() * scale, angles.sin() * scale


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn every pair ``(2j, 2j + 1)`` of the last dimension by its angle.

    Shapes: ``(T, H, head_dim)`` -> the same; computed in the type of ``cos``, in that of ``x`` out.
    """
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
    return turned.flatten(-2).to(x.dtype)
