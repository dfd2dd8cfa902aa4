"""Encoders of transformers, fed with unpadded tokens: padding is made and undone here alone."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from embedkit.models.neobert import NeoBERTModel
from embedkit.tokens import TokenBatch

_CHUNK_COST = {"cpu": 128, "cuda": 512}
"""What one more forward costs, in tokens: the price at which padding is worth avoiding."""

_POSITION_TABLES = {"position_embeddings": 0, "positional_embedding": 1}
"""Tables of absolute positions by name, transformers' and ours, and how many rows padding has."""


class Backbone(nn.Module):
    """A Hugging Face encoder as a function from tokens to their hidden states.

    Shapes: ``TokenBatch`` of T tokens -> ``(T, D)``, in the order of its ids.
    """

    def __init__(self, model: PreTrainedModel, pad_id: int) -> None:
        super().__init__()
        self.model = model
        self._pad_id = pad_id

    @property
    def width(self) -> int:
        return int(self.model.config.hidden_size)

    def forward(self, tokens: TokenBatch) -> Tensor:
        device = tokens.ids.device
        states, places = [], []
        for rows in padding_plan(tokens.lengths, _CHUNK_COST.get(device.type, 512)):
            chunk = tokens.select(rows)
            states.append(self._padded_forward(chunk))
            places.append(tokens.positions(rows))
        back = torch.cat(places).argsort().to(device)
        return torch.cat(states)[back]

    def _padded_forward(self, chunk: TokenBatch) -> Tensor:
        input_ids, mask = chunk.padded(self._pad_id)
        output: Any = self.model(input_ids=input_ids, attention_mask=mask)
        hidden: Tensor = output.last_hidden_state
        kept = _real_positions(chunk.lengths, input_ids.shape[1]).to(hidden.device)
        return hidden.reshape(-1, hidden.shape[-1])[kept]


class NeoBERTBackbone(nn.Module):
    """A NeoBERT as a function from tokens to their hidden states, without padding anywhere.

    Shapes: as ``Backbone``.
    """

    def __init__(self, model: NeoBERTModel) -> None:
        super().__init__()
        self.model = model

    @property
    def width(self) -> int:
        return self.model.config.hidden_size

    def forward(self, tokens: TokenBatch) -> Tensor:
        return self.model.encode_tokens(tokens)


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
