"""``LanguageModel``: a NeoBERT in pretraining, which maps masked tokens to the sum of losses."""

import torch
from torch import Tensor, nn

from embedkit.models.neobert import NeoBERTForMaskedLM
from embedkit.objectives.losses import masked_lm
from embedkit.tokens.batch import TokenBatch


class LanguageModel(nn.Module):
    """The masked language model as one forward, decoder and loss included.

    ``autocast`` is the dtype of matrix products; ``None`` keeps that of the weights.
    """

    def __init__(self, network: NeoBERTForMaskedLM, autocast: torch.dtype | None = None) -> None:
        super().__init__()
        self.network, self._autocast = network, autocast

    def forward(
        self, tokens: TokenBatch, positions: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Predict the tokens at ``positions``; return summed cross-entropy and right predictions.

        Shapes: T tokens, ``(M,)`` positions and targets -> two scalars.
        """
        with torch.autocast(
            tokens.ids.device.type, dtype=self._autocast, enabled=self._autocast is not None
        ):
            hidden = self.network.model.encode_tokens(tokens)[positions]
            return masked_lm(
                hidden, self.network.decoder.weight, self.network.decoder.bias, targets
            )
