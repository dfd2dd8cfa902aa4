"""SHA-256 of a module's weights, recomputed only when they may have changed."""

from functools import cache

from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from embedkit.storage.hashing import sha256_of


class WeightsHash:
    """Cache of the hash of one module's weights, which may be gigabytes."""

    def __init__(self) -> None:
        self._version: object = None
        self._hash = ""

    def of(self, module: nn.Module) -> str:
        """Return the hash of the current weights of ``module``."""
        weights = module.state_dict()
        versions = [(weight.data_ptr(), weight._version) for weight in weights.values()]
        # A fused optimizer changes tensors without a new version, so that steps are counted too.
        version = (*_optimizer_steps(), versions)
        if self._version != version:
            self._version, self._hash = version, sha256_of(weights)
        return self._hash


@cache
def _optimizer_steps() -> list[int]:
    """Return a list of one number, which counts this process's optimizer steps from now on."""
    steps = [0]

    def count(*_: object) -> None:
        steps[0] += 1

    register_optimizer_step_post_hook(count)
    return steps
