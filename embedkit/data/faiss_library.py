"""faiss, where it is installed; on a GPU where its build supports one."""

import importlib
from typing import Any

import torch

from embedkit.errors import ArgumentError


def load_faiss(option: str) -> Any:
    """Return the module faiss.

    Raises:
        ArgumentError: faiss is not installed; the ``option`` that asks for it is named.
    """
    try:
        return importlib.import_module("faiss")
    except ImportError:
        remedy = 'pip install "embedkit-neobert[faiss]" (with a GPU: [gpu]), or take torch'
        raise ArgumentError((option, f"faiss is not installed: {remedy}")) from None


def runs_on(faiss: Any, device: torch.device) -> bool:
    """Return whether the device is a GPU that this build of faiss can use."""
    return device.type == "cuda" and getattr(faiss, "get_num_gpus", int)() > 0


def moved(faiss: Any, index: Any, device: torch.device) -> Any:
    """Return an index on the device, which stays on the CPU where faiss cannot use the device."""
    if not runs_on(faiss, device):
        return index
    return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), device.index or 0, index)
