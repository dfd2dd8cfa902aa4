"""Computes the loss of a masked language model for tokens that are masked one at a time."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from embedkit.models.backbones import shape_of
from embedkit.storage.hashing import sha256_of, sha256_of_json

_TOKENS = 16_384
"""Tokens of one forward, which reads copies of a document, each with another token masked."""
_LOGITS = 2**27
"""Logits of one forward of a head that needs all positions: 512 MB in fp32."""
_PROBE = 8
"""Tokens of the sequence that shows whether a head works position by position."""


class MaskedTokenScorer:
    """Masked language model of transformers that predicts one token of a sequence at a time.

    Only masked positions go through the head, unless it mixes positions or does not read
    ``last_hidden_state`` of the model's base.
    """

    def __init__(
        self, model: PreTrainedModel, mask_id: int, *, autocast: torch.dtype | None = None
    ) -> None:
        self._model, self._mask_id, self._autocast = model, mask_id, autocast
        self._vocabulary = int(model.config.vocab_size)
        self._head_by_position = self._probe()

    @property
    def identity(self) -> str:
        """SHA-256 of all that a loss depends on: weights, config, mask id and autocast dtype."""
        settings = {
            "weights": sha256_of(self._model.state_dict()),
            "config": shape_of(self._model),
            "mask": self._mask_id,
            "autocast": str(self._autocast),
        }
        return sha256_of_json(settings, default=str)

    @torch.inference_mode()
    def losses(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return the cross-entropy of the token at each position when it alone is masked.

        Shapes: ids ``(L,)``, positions ``(P,)`` -> ``(P,)``, float64, on the CPU.
        """
        ids = ids.to(self._model.device)
        copies = _TOKENS // len(ids)
        if not self._head_by_position:
            copies = min(copies, _LOGITS // (len(ids) * self._vocabulary))
        losses = []
        for chunk in positions.to(ids.device).split(max(1, copies)):
            masked = ids.repeat(len(chunk), 1)
            masked[torch.arange(len(chunk)), chunk] = self._mask_id
            logits = self._logits(masked, chunk)
            wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
            losses.append(F.cross_entropy(wide, ids[chunk], reduction="none").double().cpu())
        return torch.cat(losses)

    def _logits(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Shapes: input_ids ``(P, L)``, positions ``(P,)`` -> ``(P, vocabulary)``."""
        rows = torch.arange(len(positions), device=positions.device)
        if not self._head_by_position:
            return self._forward(input_ids)[rows, positions]

        def keep(_base: nn.Module, _inputs: object, output: dict[str, Tensor]) -> None:
            output["last_hidden_state"] = output["last_hidden_state"][rows, positions][:, None]

        with self._model.base_model.register_forward_hook(keep):
            return self._forward(input_ids)[:, 0]

    def _forward(self, input_ids: Tensor) -> Tensor:
        device, enabled = input_ids.device.type, self._autocast is not None
        mask = torch.ones_like(input_ids)  # All copies have one length, so nothing is padding.
        with torch.autocast(device, dtype=self._autocast, enabled=enabled):
            output = self._model(input_ids=input_ids, attention_mask=mask, return_dict=True)
        return output.logits

    @torch.inference_mode()
    def _probe(self) -> bool:
        """Return whether the head gives one position the same logits alone as among all."""
        if self._model.base_model is self._model:
            return False
        ids = torch.arange(_PROBE, device=self._model.device)[None] % self._vocabulary
        position = torch.tensor([_PROBE // 2], device=ids.device)
        self._head_by_position = False
        among_all = self._logits(ids, position)
        self._head_by_position = True
        try:
            alone = self._logits(ids, position)
        except (RuntimeError, LookupError, TypeError, ValueError):
            return False
        tolerance = 0.01 * float(among_all.abs().max())
        return alone.shape == among_all.shape and torch.allclose(alone, among_all, 0, tolerance)
