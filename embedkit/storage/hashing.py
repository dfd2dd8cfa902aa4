"""SHA-256 of JSON values, texts, files and tensors, in hexadecimal digits."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def sha256_of_json(value: Any, *, default: Callable[[Any], Any] | None = None) -> str:
    """Hash a value that JSON can express, whatever the order of its keys.

    ``default`` turns what JSON cannot express into what it can, as for ``json.dumps``.
    """
    return sha256_of_text(json.dumps(value, sort_keys=True, default=default))


def sha256_of_text(text: str) -> str:
    """Hash a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Hash the bytes of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of(tensors: "Mapping[str, Tensor]") -> str:
    """Hash the names, types, shapes and values of ``tensors``."""
    # Imported here, so that files can be hashed without waiting for torch.
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
