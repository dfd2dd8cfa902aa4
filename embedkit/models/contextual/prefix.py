"""``Prefix``: vectors in front of tokens, and the inputs with which an architecture reads them.

Shapes: B sequences, P vectors in front of each, L columns once padded, D features.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_bidirectional_sliding_window_mask,
)

from embedkit.errors import UserError

# Others bias attention by distance in the sequence, or do not accept vectors instead of tokens.
ARCHITECTURES = ("bert", "eurobert", "modernbert", "nomic_bert", "roberta", "xlm-roberta")
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

    def all_positions(self, width: int) -> Tensor:
        """Return positions of the prefix and of ``width`` tokens, ``(P + width,)``, on the CPU."""
        return torch.cat([self.positions, self.text_start + torch.arange(width)])


def prepare_to_read(model: PreTrainedModel, name: str) -> None:
    """Prepare an encoder of transformers to read prefixes; replace a flash kernel by ``sdpa``.

    Raises:
        UserError: the encoder's architecture cannot read a prefix.
    """
    kind = model.config.model_type
    if kind not in ARCHITECTURES:
        raise UserError(
            f"{name}: a {kind} cannot read context vectors; choose a neobert, "
            f"{', '.join(ARCHITECTURES)}"
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
    positions = prefix.all_positions(input_ids.shape[1]) + _rows_of_padding(network)
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


def _rows_of_padding(model: PreTrainedModel) -> int:
    """Return the number of rows in a position embedding before the row of position 0."""
    if model.config.model_type not in ("roberta", "xlm-roberta"):
        return 0
    return int(model.config.pad_token_id) + 1
