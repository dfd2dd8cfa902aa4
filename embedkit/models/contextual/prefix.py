"""Vectors that an encoder reads in front of a text, and inputs with which architectures do so.

Exported folders hold this file, so that it imports torch and transformers alone.

Shapes: B sequences, P vectors in front of each, L columns once padded, D features.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_bidirectional_sliding_window_mask,
)


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """Vectors that the sequences of a batch read in front of their tokens.

    Shapes: ``vectors`` ``(B, P, D)``; ``positions`` ``(P,)`` int64, on the CPU. The first token
    has the position ``text_start``.
    """

    vectors: Tensor
    positions: Tensor
    text_start: int
    entry: str = "token"

    @property
    def length(self) -> int:
        return self.vectors.shape[1]

    def select(self, rows: Tensor) -> Self:
        """Return the prefixes of the sequences ``rows``, in that order."""
        return replace(self, vectors=self.vectors[rows.to(self.vectors.device)])


class Slots(nn.Module):
    """Module that fills J slots with context vectors, and the rest of them with the null vector.

    ``config`` has the attributes of embedkit's ``ContextualConfig``.
    """

    def __init__(self, config: Any, width: int) -> None:
        super().__init__()
        self._config = config
        self.norm = nn.RMSNorm(width, eps=1e-6) if config.context_norm else None
        self.null = nn.Parameter(torch.zeros(width)) if config.null_vector else None
        self.soft_prompts: nn.Parameter | None = None
        if config.soft_prompts:
            self.soft_prompts = nn.Parameter(torch.zeros(config.soft_prompts, width))

    def check(self, documents: int) -> None:
        """Raise ValueError for more documents than slots, or fewer without a null vector."""
        slots = self._config.num_context
        if documents > slots:
            raise ValueError(f"a context of {documents} documents: the model has {slots} slots")
        if documents < slots and self.null is None:
            raise ValueError(
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
        of_slots = torch.arange(config.num_context) * (not config.position_free)
        of_prompts = torch.arange(config.soft_prompts) + config.text_start - config.soft_prompts
        positions = torch.cat([of_slots, of_prompts])
        return Prefix(vectors, positions, config.text_start, config.entry)


def two_layers(width: int, activation: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), activation, nn.Linear(width, width))


def prefixed_inputs(network: Any, ids: Tensor, mask: Tensor, prefix: Prefix) -> dict[str, Any]:
    """Return the inputs with which an encoder of transformers reads ``prefix`` before its tokens.

    ModernBERT's local layers attend within a window, which applies between tokens of the text
    only: in every layer the prefix attends to all tokens, and all tokens attend to it.

    Shapes: ``ids`` and ``mask`` ``(B, L)``; the encoder then returns ``(B, P + L, D)``.
    """
    kind = network.config.model_type
    words = network.get_input_embeddings()(ids)
    vectors = prefix.vectors.to(words.dtype)
    if prefix.entry == "published" and kind == "modernbert":
        words = network.embeddings(ids)
    elif prefix.entry == "published" and kind == "nomic_bert":
        # The model adds the type embedding to every row, so that it is subtracted here.
        vectors = vectors - network.embeddings.token_type_embeddings.weight[0]
    embeddings = torch.cat([vectors, words], dim=1)
    mask = torch.cat([mask.new_ones(vectors.shape[:2]), mask], dim=1)
    text = prefix.text_start + torch.arange(ids.shape[1])
    positions = torch.cat([prefix.positions, text])
    if kind in ("roberta", "xlm-roberta"):
        # Rows of their position embeddings up to the padding index are reserved.
        positions = positions + network.config.pad_token_id + 1
    inputs: dict[str, Any] = {
        "inputs_embeds": embeddings,
        "attention_mask": mask,
        "position_ids": positions.to(ids.device).expand(mask.shape),
    }
    if prefix.entry == "token" and kind == "modernbert":
        inputs["attention_mask"] = _widened(network, embeddings, mask, prefix.length)
    return inputs


def _widened(network: Any, embeddings: Tensor, mask: Tensor, length: int) -> dict[str, Any]:
    """Return ModernBERT's masks; the local one is open to and from the first ``length`` columns."""

    def through_prefix(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query < length) | (key < length)

    given = {"config": network.config, "inputs_embeds": embeddings, "attention_mask": mask}
    local = create_bidirectional_sliding_window_mask(**given, or_mask_function=through_prefix)
    return {"full_attention": create_bidirectional_mask(**given), "sliding_attention": local}
