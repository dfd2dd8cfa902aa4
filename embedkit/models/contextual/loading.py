"""Loading of two-stage models by name, in embedkit's format or that of published checkpoints."""

from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from embedkit.errors import UserError
from embedkit.models import hub
from embedkit.models.contextual.cde_checkpoint import read_published
from embedkit.models.contextual.export import read_contextual
from embedkit.models.contextual.model import Contextual
from embedkit.models.st_config import read_json

_FILES = ["*.json", "*.txt", "*.safetensors"]


def is_contextual(model: str) -> bool:
    """Return whether ``model`` names a folder, or one in a package, with a two-stage model."""
    config = read_json(Path(hub.resolve(model)) / "config.json")
    return "contextual" in config or config.get("architecture") == "transductive"


def load_contextual(
    model: str, *, autocast: torch.dtype | None = None, device: torch.device | None = None
) -> Contextual:
    """Load a two-stage model: one that embedkit wrote, or a cde-small-v1 or v2.

    ``model`` is a folder, ``package:<distribution>/<path>`` or a hub id. Its code is never run.

    Raises:
        UserError: there is no such model, or it has one stage.
    """
    folder = hub.resolve(model)
    if not Path(folder).is_dir():
        try:
            folder = snapshot_download(folder, allow_patterns=_FILES)
        except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
            first = str(error).strip().splitlines()[0]
            raise UserError(
                f"{model}: is no folder here, and the hub does not give it: {first}"
            ) from None
    config = read_json(Path(folder) / "config.json")
    if "contextual" in config:
        return read_contextual(folder, autocast=autocast, device=device)
    if config.get("architecture") == "transductive":
        return read_published(folder, autocast=autocast, device=device)
    raise UserError(
        f"{model}: has one stage; Contextual.around(embedkit.load(...), ContextualConfig()) makes "
        "two of it, to be trained"
    )
