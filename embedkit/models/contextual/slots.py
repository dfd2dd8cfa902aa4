"""``InitializedSlots``: the slots of a prefix in a model that is trained or loaded by embedkit."""

import torch
from torch import Tensor, nn

from embedkit.errors import UserError
from embedkit.models.contextual import prefix
from embedkit.recipe import ContextualConfig


class InitializedSlots(prefix.Slots):
    """Slots with initial weights. ``words`` ``(V, D)`` are the word embeddings of their reader."""

    def __init__(self, config: ContextualConfig, words: Tensor) -> None:
        super().__init__(config, words.shape[1])
        if self.norm is not None:
            scale = words.detach().float().square().mean().sqrt()
            nn.init.constant_(self.norm.weight, float(scale))
        for vectors in (self.null, self.soft_prompts):
            if vectors is not None:
                vectors.data = 0.01 * torch.randn(vectors.shape)

    def check(self, documents: int) -> None:
        try:
            super().check(documents)
        except ValueError as error:
            raise UserError(str(error)) from None
