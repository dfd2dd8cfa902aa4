"""One name for the values of many tensors."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def sha256_of(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the names, types, shapes and values of ``tensors``."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
