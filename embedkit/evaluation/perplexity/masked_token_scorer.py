"""What a masked language model guesses: the loss of a token that is masked alone."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from embedkit.models.backbones import shape_of
from embedkit.storage.hashing import sha256_of, sha256_of_json

_TOKENS = 16_384
"""Of one forward: as many copies of a document, each with its own mask."""
_LOGITS = 2**27
"""Of one forward, where a head gives those of all positions: 512 MB in fp32."""
_PROBE = 8
"""Tokens of the sequence that shows whether a head works position by position."""


class MaskedTokenScorer:
    """A masked language model of transformers, asked for one token of a sequence at a time.

    Only the masked positions go through the head, unless it is not a function of each position
    alone or does not read ``last_hidden_state`` of the model's base.
    """

    def __init__(
        self, model: PreTrainedModel, mask_id: int, *, autocast: torch.dtype | None = None
    ) -> None:
        self._model, self._mask_id, self._autocast = model, mask_id, autocast
        self._vocabulary = int(model.config.vocab_size)
        self._head_by_position = self._probe()

    @property
    def identity(self) -> str:
        """SHA-256 of all that a loss depends on: network, the mask's id, the type of products."""
        settings = {
            "weights": sha256_of(self._model.state_dict()),
            "config": shape_of(self._model),
            "mask": self._mask_id,
            "autocast": str(self._autocast),
        }
        return sha256_of_json(settings, default=str)

    @torch.inference_mode()
    def losses(self, ids: Tensor, positions: Tensor) -> Tensor:
        """The cross-entropy of each token of ``positions`` when it alone is masked.

        Shapes: ids ``(L,)``, positions ``(P,)`` -> ``(P,)``, float64, on the CPU.
        """
        ids = ids.to(self._model.device)
        found = []
        for chunk in positions.to(ids.device).split(self._copies(len(ids))):
            masked = ids.repeat(len(chunk), 1)
            masked[torch.arange(len(chunk)), chunk] = self._mask_id
            logits = self._logits(masked, chunk)
            wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
            found.append(F.cross_entropy(wide, ids[chunk], reduction="none").double().cpu())
        return torch.cat(found)

    def _copies(self, length: int) -> int:
        copies = _TOKENS // length
        if not self._head_by_position:
            copies = min(copies, _LOGITS // (length * self._vocabulary))
        return max(1, copies)

    def _logits(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Shapes: input_ids ``(P, L)``, positions ``(P,)`` -> ``(P, vocabulary)``."""
        rows = torch.arange(len(positions), device=positions.device)
        if not self._head_by_position:
            return self._forward(input_ids)[rows, positions]

        def keep(_base: nn.Module, _inputs: object, output: dict[str, Tensor]) -> None:
            output["last_hidden_state"] = output["last_hidden_state"][rows, positions][:, None]

        hook = self._model.base_model.register_forward_hook(keep)
        try:
            return self._forward(input_ids)[:, 0]
        finally:
            hook.remove()

    def _forward(self, input_ids: Tensor) -> Tensor:
        # All copies are of one length, so nothing is padding.
        with torch.autocast(
            input_ids.device.type, dtype=self._autocast, enabled=self._autocast is not None
        ):
            output = self._model(
                input_ids=input_ids, attention_mask=torch.ones_like(input_ids), return_dict=True
            )
        logits: Tensor = output.logits
        return logits

    @torch.inference_mode()
    def _probe(self) -> bool:
        """Whether the head gives the same for a position alone as among all."""
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
        scale = float(among_all.abs().max())
        return alone.shape == among_all.shape and torch.allclose(
            alone, among_all, rtol=0, atol=0.01 * scale
        )
