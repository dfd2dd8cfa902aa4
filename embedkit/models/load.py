"""Loading of models by name, of one stage or two, on the device of this process."""

from pathlib import Path

from embedkit import distributed
from embedkit.errors import UserError
from embedkit.models import hub, precision
from embedkit.models.contextual.loading import is_contextual, load_contextual
from embedkit.models.embedder import Embedder
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.recipe import Dtype


def load(model: str | Path, *, dtype: Dtype = "auto") -> EmbeddingModel:
    """Load an embedding model for use: on the GPU if there is one, else on the CPU.

    Args:
        model: a hub id, a folder, ``package:<distribution>/<path>`` or an alias.
        dtype: precision of matrix products; ``auto`` is bf16 where the device has it, else fp32.

    Raises:
        UserError: there is no such model, or it has parts that embedkit does not know.
    """
    device, name = distributed.local_device(), str(model)
    kind = load_contextual if is_contextual(name) else hub.load
    return kind(name, autocast=precision.autocast_dtype(dtype, device), device=device)


def opened(model: str | Path | EmbeddingModel, *, dtype: Dtype) -> EmbeddingModel:
    """Return ``model`` itself, or load it if it is given by its name."""
    return load(model, dtype=dtype) if isinstance(model, str | Path) else model


def one_stage(model: str | Path | EmbeddingModel, *, dtype: Dtype, purpose: str) -> Embedder:
    """Return a model of one stage on this process's device; load it if it is given by its name.

    Raises:
        UserError: there is no such model, or it has two stages, which ``purpose`` cannot use.
    """
    name = str(model) if isinstance(model, str | Path) else model.name
    model = opened(model, dtype=dtype)
    if not isinstance(model, Embedder):
        raise UserError(
            f"{name}: is a contextual model, whose vectors depend on a corpus; {purpose} needs a "
            "model of one stage"
        )
    return model.to(distributed.local_device())
