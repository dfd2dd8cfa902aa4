"""``Prefix``: vectors in front of tokens, and how each architecture takes them in.

Shapes: B sequences, P vectors in front of each, L columns once padded, D width.
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

# Others bias attention by distance in the sequence, or know no vectors in the place of tokens.
ARCHITECTURES = ("bert", "eurobert", "modernbert", "nomic_bert", "roberta", "xlm-roberta")
"""transformers' types of encoders that read a prefix; a NeoBERT does so too, without padding."""

# A flash kernel takes no mask, and reads the positions of a prefix as many texts packed in one row.
KERNELS = ("sdpa", "eager")
"""Implementations of attention under which they do."""


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """What every sequence of a batch reads in front of its tokens.

    Shapes: ``vectors`` ``(B, P, D)``; ``positions`` ``(P,)`` int64, on the CPU; the first token
    stands at ``text_start``.
    """

    vectors: Tensor
    positions: Tensor
    text_start: int
    entry: Literal["token", "published"] = "token"

    @property
    def length(self) -> int:
        return self.vectors.shape[1]

    def select(self, rows: Tensor) -> Self:
        """The prefixes of the sequences ``rows``, in that order."""
        return replace(self, vectors=self.vectors[rows.to(self.vectors.device)])

    def all_positions(self, width: int) -> Tensor:
        """The positions of the prefix and of ``width`` tokens, ``(P + width,)``, on the CPU."""
        return torch.cat([self.positions, self.text_start + torch.arange(width)])


def prepare_to_read(model: PreTrainedModel, name: str) -> None:
    """Have an encoder of transformers read prefixes; a flash kernel makes way for ``sdpa``.

    Raises:
        UserError: its architecture cannot.
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
    """What to call an encoder of transformers with, so that it reads ``prefix`` first.

    ModernBERT's local layers see no further than a window. Its width is measured between tokens of
    the text alone: what is in front of them sees all and is seen by all, in every layer.

    Shapes: ``input_ids`` and ``mask`` ``(B, L)``; the states that come out ``(B, P + L, D)``.
    """
    network: Any = model
    kind = model.config.model_type
    words = network.get_input_embeddings()(input_ids)
    vectors = prefix.vectors.to(words.dtype)
    if prefix.entry == "published" and kind == "modernbert":
        words = network.embeddings(input_ids)
    elif prefix.entry == "published" and kind == "nomic_bert":
        # The model is about to add it to every row.
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
    """ModernBERT's two masks, the local one open to and from the first ``length`` columns."""

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
    """How many rows of a table of positions stand before that of position 0."""
    if model.config.model_type not in ("roberta", "xlm-roberta"):
        return 0
    return int(model.config.pad_token_id) + 1
