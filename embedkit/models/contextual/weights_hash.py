"""``WeightsHash``: SHA-256 of a module's weights, computed anew only when they may have changed."""

from functools import cache

from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from embedkit.storage.hashing import sha256_of

_steps_of_optimizers = 0
"""Steps that optimizers of this process have taken since the first hash was asked for."""


class WeightsHash:
    """Remembers the hash of one module's weights, which may be gigabytes."""

    def __init__(self) -> None:
        self._version: object = None
        self._hash = ""

    def of(self, module: nn.Module) -> str:
        """Return the hash of the weights that ``module`` has now."""
        _count_steps()
        weights = module.state_dict()
        versions = [(each.data_ptr(), each._version) for each in weights.values()]
        # A fused optimizer writes past the versions of its tensors.
        version = (_steps_of_optimizers, versions)
        if self._version != version:
            self._version, self._hash = version, sha256_of(weights)
        return self._hash


@cache
def _count_steps() -> None:
    """Begin to count the steps of all optimizers; only a process that asks for a hash does."""

    def count(*_: object) -> None:
        global _steps_of_optimizers
        _steps_of_optimizers += 1

    register_optimizer_step_post_hook(count)
