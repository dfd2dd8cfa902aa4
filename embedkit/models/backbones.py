"""Encoders of transformers, fed with unpadded tokens: padding is made and undone here alone."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from embedkit.models.contextual.prefix import Prefix, prefixed_inputs
from embedkit.models.neobert import NeoBERTModel
from embedkit.tokens.batch import TokenBatch

_CHUNK_COST = {"cpu": 128, "cuda": 512}
"""What one more forward costs, in tokens: the price at which padding is worth avoiding."""

_POSITION_TABLES = {"position_embeddings": 0, "positional_embedding": 1}
"""Tables of absolute positions by name, transformers' and ours, and how many rows padding has."""

_OF_NO_VECTOR = ("_name_or_path", "architectures", "dropout", "dtype", "init", "version")
"""Parts of the names under which a configuration says nothing of what is computed when encoding."""


class Backbone(nn.Module, ABC):
    """An encoder as a function from tokens to their hidden states.

    Shapes: ``TokenBatch`` of T tokens -> ``(T, D)``, in the order of its ids.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    @property
    def width(self) -> int:
        """Features of a hidden state, D."""
        return int(self.model.config.hidden_size)

    @abstractmethod
    def forward(self, tokens: TokenBatch, prefix: Prefix | None = None) -> Tensor:
        """Return the states of ``tokens``, read behind ``prefix`` where there is one."""


class PaddedBackbone(Backbone):
    """A Hugging Face encoder, which reads padded chunks of sequences that are alike in length.

    Shapes: as ``Backbone``.
    """

    def __init__(self, model: PreTrainedModel, pad_id: int) -> None:
        super().__init__(model)
        self._pad_id = pad_id

    def forward(self, tokens: TokenBatch, prefix: Prefix | None = None) -> Tensor:
        """The states of ``tokens``, read behind ``prefix`` where there is one."""
        device = tokens.ids.device
        lengths = tokens.lengths + (prefix.length if prefix else 0)
        states, places = [], []
        for rows in padding_plan(lengths, _CHUNK_COST.get(device.type, 512)):
            chunk = tokens.select(rows)
            states.append(self._padded_forward(chunk, prefix and prefix.select(rows)))
            places.append(tokens.positions(rows))
        back = torch.cat(places).argsort().to(device)
        return torch.cat(states)[back]

    def _padded_forward(self, chunk: TokenBatch, prefix: Prefix | None) -> Tensor:
        input_ids, mask = chunk.padded(self._pad_id)
        inputs = {"input_ids": input_ids, "attention_mask": mask}
        if prefix is not None:
            inputs = prefixed_inputs(self.model, input_ids, mask, prefix)
        output: Any = self.model(**inputs)
        hidden: Tensor = output.last_hidden_state[:, -input_ids.shape[1] :]
        kept = _real_positions(chunk.lengths, input_ids.shape[1]).to(hidden.device)
        return hidden.reshape(-1, hidden.shape[-1])[kept]


class NeoBERTBackbone(Backbone):
    """A NeoBERT as a function from tokens to their hidden states, without padding anywhere.

    Shapes: as ``Backbone``.
    """

    model: NeoBERTModel

    def forward(self, tokens: TokenBatch, prefix: Prefix | None = None) -> Tensor:
        """The states of ``tokens``, read behind ``prefix`` where there is one."""
        if prefix is None:
            return self.model.encode_tokens(tokens)
        rows = torch.arange(len(tokens)).repeat_interleave(tokens.lengths)
        # Each sequence is its share of the prefix, then its tokens.
        text = torch.arange(tokens.num_tokens) + prefix.length * (rows + 1)
        is_text = torch.zeros(tokens.num_tokens + len(tokens) * prefix.length, dtype=torch.bool)
        is_text[text] = True
        order = torch.cat([(~is_text).nonzero().squeeze(1), text]).argsort()
        within = torch.arange(tokens.num_tokens) - tokens.offsets[rows]
        positions = torch.cat([prefix.positions.repeat(len(tokens)), prefix.text_start + within])
        words = self.model.encoder(tokens.ids)
        embeddings = torch.cat([prefix.vectors.flatten(0, 1).to(words.dtype), words])
        states = self.model.encode_embeddings(
            embeddings[order.to(words.device)], tokens.lengths + prefix.length, positions[order]
        )
        return states[text.to(words.device)]


def absolute_positions(model: nn.Module) -> int | None:
    """How many tokens a model's table of positions serves; ``None``: it has none, and no end.

    A table that knows its padding row, as RoBERTa's, is used from behind that row.
    """
    for path, module in model.named_modules():
        name = path.rpartition(".")[2]
        if isinstance(module, nn.Embedding) and name in _POSITION_TABLES:
            padding = module.padding_idx
            unused = _POSITION_TABLES[name] if padding is None else padding + 1
            return module.num_embeddings - unused
    return None


def shape_of(model: PreTrainedModel) -> dict[str, Any]:
    """What the configuration of an encoder says of how its weights become vectors."""
    return {
        key: value
        for key, value in model.config.to_dict().items()
        if not any(part in key for part in _OF_NO_VECTOR)
    }


def padding_plan(lengths: Tensor, chunk_cost: int) -> list[Tensor]:
    """Cut sequences, sorted by length, into the chunks that cost least.

    A chunk costs its rows times its longest row, plus ``chunk_cost`` tokens. Sequences of one
    length stay together, so the search is over distinct lengths.

    Shapes: ``lengths`` ``(B,)``; each chunk holds rows in ``range(B)``, shortest first.
    """
    order = torch.argsort(lengths, stable=True)
    distinct, counts = torch.unique_consecutive(lengths[order], return_counts=True)
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    best = torch.zeros(len(distinct) + 1)
    cuts = []
    for last in range(len(distinct)):
        rows = ends[last + 1] - ends[: last + 1]
        costs = best[: last + 1] + rows * distinct[last] + chunk_cost
        cuts.append(int(costs.argmin()))
        best[last + 1] = costs.min()
    chunks, end = [], len(distinct)
    while end:
        start = cuts[end - 1]
        chunks.append(order[int(ends[start]) : int(ends[end])])
        end = start
    return chunks[::-1]


def _real_positions(lengths: Tensor, width: int) -> Tensor:
    """Where the tokens that are not padding stand in a flattened ``(B, width)``, on the CPU."""
    return (torch.arange(width) < lengths[:, None]).flatten().nonzero().squeeze(1)
