"""FSDP2: models whose weights are sharded over ranks, and their unsharded state."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from embedkit import distributed

Moments = dict[str, dict[str, Tensor]]
"""An optimizer's state tensors by parameter name and, within it, by name of the moment."""

_WHOLE = states.StateDictOptions(full_state_dict=True, cpu_offload=True)


def shard(model: nn.Module, layers: Iterable[nn.Module]) -> None:
    """Shard weights, gradients and moments over the ranks; forward gathers one layer at a time."""
    device = next(model.parameters()).device.type
    mesh = init_device_mesh(device, (distributed.world_size(),))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def is_sharded(model: nn.Module) -> bool:
    return isinstance(model, FSDPModule)


def reduce_in_backward(model: nn.Module, wanted: bool) -> None:
    """Set whether the next backward pass of a sharded model averages gradients over ranks.

    Only the last backward pass of a step has to. Other models are left as they are.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(wanted)


def whole(tensor: Tensor) -> Tensor:
    """Return the full tensor; if this rank holds a shard of it, all ranks have to call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_state(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Tensor], Moments]:
    """Return unsharded weights and moments on rank 0, none elsewhere. All ranks have to call it."""
    weights: Any = states.get_model_state_dict(model, options=_WHOLE)
    state: Any = states.get_optimizer_state_dict(model, optimizer, options=_WHOLE)
    return weights, state.get("state", {})


def restore(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    weights: Mapping[str, Tensor],
    moments: Moments,
) -> None:
    """Load unsharded weights and moments, which every rank holds in full, into a sharded model."""
    states.set_model_state_dict(model, dict(weights), options=_WHOLE)
    groups = states.get_optimizer_state_dict(model, optimizer)["param_groups"]
    state: Any = {"state": moments, "param_groups": groups}
    states.set_optimizer_state_dict(model, optimizer, state, options=_WHOLE)
