"""Precision of training and encoding: bf16 support of a device, and the choice for ``auto``."""

from typing import get_args

import torch

from embedkit.errors import ArgumentError
from embedkit.recipe import Dtype, RecipeT


def has_bf16(device: torch.device) -> bool:
    """Return whether ``device`` multiplies bf16 matrices in hardware."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # torch has no public function for these two; other CPUs emulate bf16, slower than fp32.
    probes = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(getattr(torch.cpu, probe, bool)() for probe in probes)


def resolve(recipe: RecipeT, device: torch.device) -> tuple[RecipeT, str]:
    """Resolve ``precision = "auto"`` for ``device``; return the recipe and a description."""
    if recipe.precision != "auto":
        return recipe, recipe.precision
    if has_bf16(device):
        return recipe.model_copy(update={"precision": "bf16"}), "bf16"
    reason = f"fp32 (this {'GPU' if device.type == 'cuda' else 'CPU'} has no native bf16)"
    return recipe.model_copy(update={"precision": "fp32"}), reason


def autocast_dtype(dtype: Dtype, device: torch.device) -> torch.dtype | None:
    """Return the autocast type for ``dtype``, ``None`` for no autocast; refuse other names."""
    if dtype not in get_args(Dtype):
        choices = ", ".join(get_args(Dtype))
        raise ArgumentError(("dtype", f"choose one of {choices} (got {dtype!r})"))
    if dtype == "auto":
        dtype = "bf16" if has_bf16(device) else "fp32"
    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": None}[dtype]
