"""Vectors that an encoder reads in front of a text, and inputs with which architectures do so.

Shapes: B sequences, P vectors in front of each, L columns once padded, D features.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_bidirectional_sliding_window_mask,
)

from embedkit.errors import UserError
from embedkit.recipe import ContextualConfig

# Others bias attention by distance in the sequence, or do not accept vectors instead of tokens.
_ARCHITECTURES = ("bert", "eurobert", "modernbert", "nomic_bert", "roberta", "xlm-roberta")
"""Model types of transformers that can read a prefix; a NeoBERT can too, without padding."""

# A flash kernel takes no mask, and reads the positions of a prefix as many texts packed in one row.
KERNELS = ("sdpa", "eager")
"""Implementations of attention with which encoders of transformers can read a prefix."""


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """Vectors that the sequences of a batch read in front of their tokens.

    Shapes: ``vectors`` ``(B, P, D)``; ``positions`` ``(P,)`` int64, on the CPU. The first token
    has the position ``text_start``.
    """

    vectors: Tensor
    positions: Tensor
    text_start: int
    entry: Literal["token", "published"] = "token"

    @property
    def length(self) -> int:
        return self.vectors.shape[1]

    def select(self, rows: Tensor) -> Self:
        """Return the prefixes of the sequences ``rows``, in that order."""
        return replace(self, vectors=self.vectors[rows.to(self.vectors.device)])


class Slots(nn.Module):
    """Module that fills J slots with context vectors, and the rest of them with the null vector.

    Shapes: ``words`` ``(V, D)``, the word embeddings of the encoder that reads the slots.
    """

    def __init__(self, config: ContextualConfig, words: Tensor) -> None:
        super().__init__()
        self._config = config
        width = words.shape[1]
        self.norm = self.null = self.soft_prompts = None
        if config.context_norm:
            self.norm = nn.RMSNorm(width, eps=1e-6)
            scale = words.detach().float().square().mean().sqrt()
            nn.init.constant_(self.norm.weight, float(scale))
        if config.null_vector:
            self.null = nn.Parameter(0.01 * torch.randn(width))
        if config.soft_prompts:
            self.soft_prompts = nn.Parameter(0.01 * torch.randn(config.soft_prompts, width))

    def check(self, documents: int) -> None:
        """Raise UserError for more documents than slots, or fewer without a null vector."""
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
        of_slots = torch.arange(config.num_context) * (not config.position_free)
        of_prompts = torch.arange(config.soft_prompts) + config.text_start - config.soft_prompts
        positions = torch.cat([of_slots, of_prompts])
        return Prefix(vectors, positions, config.text_start, config.entry)


def prepare_to_read(model: PreTrainedModel, name: str) -> None:
    """Prepare an encoder of transformers to read prefixes; replace a flash kernel by ``sdpa``.

    Raises:
        UserError: the encoder's architecture cannot read a prefix.
    """
    kind = model.config.model_type
    if kind not in _ARCHITECTURES:
        raise UserError(
            f"{name}: a {kind} cannot read context vectors; choose a neobert, "
            f"{', '.join(_ARCHITECTURES)}"
        )
    if model.config._attn_implementation not in KERNELS:
        model.set_attn_implementation("sdpa")


def prefixed_inputs(
    model: PreTrainedModel, input_ids: Tensor, mask: Tensor, prefix: Prefix
) -> dict[str, Any]:
    """Return the inputs with which an encoder of transformers reads ``prefix`` before its tokens.

    ModernBERT's local layers attend within a window, which applies between tokens of the text
    only: in every layer the prefix attends to all tokens, and all tokens attend to it.

    Shapes: ``input_ids`` and ``mask`` ``(B, L)``; the encoder then returns ``(B, P + L, D)``.
    """
    network: Any = model
    kind = model.config.model_type
    words = network.get_input_embeddings()(input_ids)
    vectors = prefix.vectors.to(words.dtype)
    if prefix.entry == "published" and kind == "modernbert":
        words = network.embeddings(input_ids)
    elif prefix.entry == "published" and kind == "nomic_bert":
        # The model adds the type embedding to every row, so that it is subtracted here.
        vectors = vectors - network.embeddings.token_type_embeddings.weight[0]
    embeddings = torch.cat([vectors, words], dim=1)
    mask = torch.cat([mask.new_ones(vectors.shape[:2]), mask], dim=1)
    text = prefix.text_start + torch.arange(input_ids.shape[1])
    positions = torch.cat([prefix.positions, text])
    if kind in ("roberta", "xlm-roberta"):
        # Rows of their position embeddings up to the padding index are reserved.
        positions = positions + network.config.pad_token_id + 1
    inputs: dict[str, Any] = {
        "inputs_embeds": embeddings,
        "attention_mask": mask,
        "position_ids": positions.to(input_ids.device).expand(mask.shape),
    }
    if prefix.entry == "token" and kind == "modernbert":
        inputs["attention_mask"] = _widened(network, embeddings, mask, prefix.length)
    return inputs


def _widened(network: Any, embeddings: Tensor, mask: Tensor, length: int) -> dict[str, Any]:
    """Return ModernBERT's masks; the local one is open to and from the first ``length`` columns."""

    def through_prefix(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query < length) | (key < length)

    given = {"config": network.config, "inputs_embeds": embeddings, "attention_mask": mask}
    return {
        "full_attention": create_bidirectional_mask(**given),
        "sliding_attention": create_bidirectional_sliding_window_mask(
            **given, or_mask_function=through_prefix
        ),
    }
