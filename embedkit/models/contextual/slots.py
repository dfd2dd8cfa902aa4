"""``Slots``: the prefix of a text, made of context vectors, the null vector and soft prompts."""

import torch
from torch import Tensor, nn

from embedkit.errors import UserError
from embedkit.models.contextual.prefix import Prefix
from embedkit.recipe import ContextualConfig


class Slots(nn.Module):
    """Module that fills J slots with context vectors, and the rest of them with the null vector.

    Shapes: ``words`` ``(V, D)``, the word embeddings of the encoder that reads the slots.
    """

    def __init__(self, config: ContextualConfig, words: Tensor) -> None:
        super().__init__()
        self._config = config
        width = words.shape[1]
        self.norm: nn.RMSNorm | None = None
        self.null: nn.Parameter | None = None
        self.soft_prompts: nn.Parameter | None = None
        if config.context_norm:
            self.norm = nn.RMSNorm(width, eps=1e-6)
            scale = words.detach().float().square().mean().sqrt()
            nn.init.constant_(self.norm.weight, float(scale))
        if config.null_vector:
            self.null = nn.Parameter(0.01 * torch.randn(width))
        if config.soft_prompts:
            self.soft_prompts = nn.Parameter(0.01 * torch.randn(config.soft_prompts, width))

    def check(self, documents: int) -> None:
        """Verify that a context of so many documents fits the slots.

        Raises:
            UserError: there are more documents than slots, or fewer and no null vector.
        """
        slots = self._config.num_context
        if documents > slots:
            raise UserError(f"a context of {documents} documents: the model has {slots} slots")
        if documents < slots and self.null is None:
            raise UserError(
                f"a context of {documents} documents: the model has no null vector to fill its "
                f"{slots} slots with; pass {slots}"
            )

    def forward(self, context: Tensor, texts: int) -> Prefix:
        """Return the prefix of ``texts`` texts; in training every text drops slots at random.

        Shapes: ``context`` ``(n, D)`` of n <= J.
        """
        config = self._config
        self.check(len(context))
        filled = context if self.norm is None else self.norm(context)
        if self.null is not None:
            missing = config.num_context - len(context)
            filled = torch.cat([filled, self.null.expand(missing, -1).to(filled.dtype)])
        vectors = filled.expand(texts, -1, -1)
        if self.training and config.context_dropout:
            assert self.null is not None
            dropped = torch.rand(vectors.shape[:2], device=vectors.device) < config.context_dropout
            vectors = torch.where(dropped[..., None], self.null.to(vectors.dtype), vectors)
        if self.soft_prompts is not None:
            prompts = self.soft_prompts.to(vectors.dtype)
            vectors = torch.cat([vectors, prompts.expand(texts, -1, -1)], dim=1)
        return Prefix(vectors, self._positions(), config.text_start, config.entry)

    def _positions(self) -> Tensor:
        config = self._config
        slots = torch.arange(config.num_context)
        if config.position_free:
            slots = torch.zeros_like(slots)
        prompts = torch.arange(config.soft_prompts) + config.text_start - config.soft_prompts
        return torch.cat([slots, prompts])
