"""The head of an embedding model: modules behind its pooling, from vectors to vectors.

They are the Dense and Normalize modules of sentence-transformers, in the order of a model's folder.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from embedkit.errors import UserError
from embedkit.models.model_files import read_json, refuse_pickle
from embedkit.storage.atomic import write_json


class UnitNorm(nn.Module):
    """Scales vectors to unit norm, as the module Normalize does."""

    kind = "Normalize"

    def forward(self, vectors: Tensor) -> Tensor:
        return F.normalize(vectors, dim=-1)


class Projection(nn.Module):
    """A Dense module of sentence-transformers: a linear layer and an activation."""

    kind = "Dense"

    def __init__(self, dense: nn.Module) -> None:
        super().__init__()
        self.dense: Any = dense

    @property
    def width(self) -> int:
        """Number of features of its output."""
        return int(self.dense.out_features)

    @property
    def config(self) -> dict[str, Any]:
        """The module's config.json, with the keys that every release reads and no others."""
        config: dict[str, Any] = self.dense.get_config_dict()
        inputs = ("module_input_name", "module_output_name")
        return {name: value for name, value in config.items() if name not in inputs}

    def forward(self, vectors: Tensor) -> Tensor:
        features = {"sentence_embedding": vectors.to(self.dense.linear.weight.dtype)}
        projected: Tensor = self.dense(features)["sentence_embedding"]
        return projected.to(vectors.dtype)


class Head(nn.Sequential):
    """``UnitNorm`` and ``Projection`` in any order. Shapes: ``(B, D)`` -> ``(B, E)``."""

    @property
    def is_unit_norm(self) -> bool:
        """Whether every vector that it returns has unit norm."""
        return len(self) > 0 and isinstance(self[-1], UnitNorm)

    @property
    def described(self) -> list[tuple[str, dict[str, Any]]]:
        """Kind and settings of each module; the weights are not among them."""
        return [(str(module.kind), getattr(module, "config", {})) for module in self]

    def width(self, states: int) -> int:
        """Return the number of features of its output, if hidden states have ``states``."""
        widths = [module.width for module in self if isinstance(module, Projection)]
        return widths[-1] if widths else states


def read_head(folder: str, modules: Sequence[tuple[str, str]]) -> Head:
    """Read the modules of a folder, given by kind and path, in their order.

    Raises:
        UserError: a Dense module cannot be read, or has a function that is not one of torch's.
    """
    head = Head()
    for kind, path in modules:
        head.append(UnitNorm() if kind == UnitNorm.kind else _read_dense(Path(folder) / path))
    return head


def write_head(head: Head, folder: Path) -> list[tuple[str, str]]:
    """Write each module into a folder of its own; return their kinds and paths."""
    written = []
    for number, module in enumerate(head, start=2):
        path = f"{number}_{module.kind}"
        (folder / path).mkdir()
        write_json(folder / path / "config.json", getattr(module, "config", {}))
        if isinstance(module, Projection):
            weights = {
                k: w.detach().cpu().contiguous() for k, w in module.dense.state_dict().items()
            }
            save_file(weights, folder / path / "model.safetensors", metadata={"format": "pt"})
        written.append((str(module.kind), path))
    return written


def _read_dense(folder: Path) -> Projection:
    # sentence-transformers takes seconds to import, and most models have no such module.
    from sentence_transformers.base.modules import Dense

    config = read_json(folder / "config.json")
    for key in ("module_input_name", "module_output_name"):
        if (value := config.get(key) or "sentence_embedding") != "sentence_embedding":
            raise UserError(
                f"{folder}: {key} = {value!r}, and only a Dense module from one vector of a text "
                "to another is read; pass the folder of the encoder alone"
            )
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    if not activation.startswith("torch.nn."):
        raise UserError(
            f"{folder}: activation_function = {activation!r} is none of torch's, and no code of a "
            "model is run; pass the folder of the encoder alone"
        )
    if not (folder / "model.safetensors").is_file():
        refuse_pickle(str(folder))
        raise UserError(f"{folder}: holds no model.safetensors; pass a folder with all its weights")
    try:
        return Projection(Dense.load(str(folder), local_files_only=True))
    except (ImportError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{folder}: is no Dense module that can be read ({reason}); copy the folder anew from "
            "where the model comes from"
        ) from None
