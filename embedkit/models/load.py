"""Loading of models by name, of one stage or two; other settings for a loaded one."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path

from transformers import PreTrainedModel

from embedkit import distributed
from embedkit.errors import ArgumentError, UserError
from embedkit.models import hub, precision
from embedkit.models.contextual.loading import is_contextual, load_contextual
from embedkit.models.cpu_linear import packed
from embedkit.models.embedder import Embedder
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.recipe import Dtype


def load(model: str | Path, *, dtype: Dtype = "fp32") -> EmbeddingModel:
    """Load an embedding model for use: on the GPU if there is one, else on the CPU.

    Args:
        model: a hub id, a folder, ``package:<distribution>/<path>`` or an alias.
        dtype: precision of matrix products; fp32 gives the vectors of sentence-transformers, and
            ``auto`` is bf16 where the device has it, else fp32.

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


def cutting_at(max_tokens: int | None, model: EmbeddingModel) -> EmbeddingModel:
    """Return the model with another length limit; weights are shared, and it is left as it is."""
    if max_tokens is None:
        return model
    if max_tokens > model.position_limit:
        mistake = f"{model.name} reads at most {model.position_limit} tokens"
        remedy = f"choose from 3 to {model.position_limit} (got {max_tokens})"
        raise ArgumentError(("max_tokens", f"{mistake}; {remedy}"))
    shortened = copy(model)
    shortened.max_tokens = max_tokens
    return shortened


@contextmanager
def computing_in(dtype: Dtype, model: EmbeddingModel) -> Iterator[None]:
    """Have the model encode in ``dtype``, and compute afterwards as before.

    Its weights must stay as they are meanwhile.
    """
    earlier = model.autocast
    model.autocast = precision.autocast_dtype(dtype, model.device)
    # Flash kernels take no fp32, and a model that is being trained may have been loaded with one.
    kernels = {} if model.autocast else _flash_kernels(model)
    try:
        for encoder in kernels:
            encoder.set_attn_implementation("sdpa")
        with packed(model):
            yield
    finally:
        for encoder, kernel in kernels.items():
            encoder.set_attn_implementation(kernel)
        model.autocast = earlier


def _flash_kernels(model: EmbeddingModel) -> dict[PreTrainedModel, str]:
    """Return the encoders of transformers that compute attention by a flash kernel, and which."""
    encoders = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    kernels = {encoder: str(encoder.config._attn_implementation) for encoder in encoders}
    return {encoder: kernel for encoder, kernel in kernels.items() if kernel.startswith("flash")}
