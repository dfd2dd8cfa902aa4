"""``WeightsHash``: SHA-256 of a module's weights, recomputed only when they may have changed."""

from functools import cache

from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from embedkit.storage.hashing import sha256_of

_steps_of_optimizers = 0
"""Number of optimizer steps in this process since the first hash was computed."""


class WeightsHash:
    """Cache of the hash of one module's weights, which may be gigabytes."""

    def __init__(self) -> None:
        self._version: object = None
        self._hash = ""

    def of(self, module: nn.Module) -> str:
        """Return the hash of the current weights of ``module``."""
        _count_steps()
        weights = module.state_dict()
        versions = [(weight.data_ptr(), weight._version) for weight in weights.values()]
        # A fused optimizer changes tensors without a new version, so that steps are counted too.
        version = (_steps_of_optimizers, versions)
        if self._version != version:
            self._version, self._hash = version, sha256_of(weights)
        return self._hash


@cache
def _count_steps() -> None:
    """Start counting the steps of all optimizers, once in a process that computes a hash."""

    def count(*_: object) -> None:
        global _steps_of_optimizers
        _steps_of_optimizers += 1

    register_optimizer_step_post_hook(count)
