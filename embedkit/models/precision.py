"""Precision of training and encoding: bf16 support of a device, and the choice for ``auto``."""

import torch

from embedkit.errors import UserError
from embedkit.recipe import RecipeT


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
    name = "GPU" if device.type == "cuda" else "CPU"
    said = f"fp32 (this {name} has no native bf16)"
    return recipe.model_copy(update={"precision": "fp32"}), said


def autocast_dtype(name: str, device: torch.device) -> torch.dtype | None:
    """Return the autocast dtype for ``auto``, ``bf16``, ``fp16`` or ``fp32``, where it is ``None``.

    Raises:
        UserError: ``name`` is none of these.
    """
    if name == "auto":
        name = "bf16" if has_bf16(device) else "fp32"
    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": None}
    if name not in types:
        raise UserError(f"dtype {name}: choose auto, bf16, fp16 or fp32")
    return types[name]
