"""Encoders that take unpadded tokens; only this module adds and removes padding."""

from abc import ABC, abstractmethod
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from embedkit.models.contextual.prefix import Prefix, prefixed_inputs
from embedkit.models.neobert import NeoBERTModel
from embedkit.tokens.batch import TokenBatch

_CHUNK_COST = {"cpu": 128, "cuda": 512}
"""Cost of one more forward pass, in tokens, which padding is weighed against, by device type."""

_CPU_TOKENS = 4096
"""Tokens that a CPU encodes at a time: the states of more fall out of its caches."""

_POSITION_TABLES = {"position_embeddings": 0, "positional_embedding": 1}
"""Names of position embeddings in transformers and in embedkit, with the number of first rows that
are reserved for padding."""

_OF_NO_VECTOR = ("_name_or_path", "architectures", "dropout", "dtype", "init", "version")
"""Parts of the names of configuration entries that do not affect the vectors of an encoder."""


class Backbone(nn.Module, ABC):
    """Encoder as a function from tokens to their hidden states.

    Shapes: ``TokenBatch`` of T tokens -> ``(T, D)``, in the order of its ids.
    """

    reads_token_types = False
    """Whether every token is read with the token type 0, which networks of BERT's family take for
    granted and others, such as GPT-2, add only if it is given."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    @property
    def width(self) -> int:
        """Number of features of a hidden state, D."""
        return int(self.model.config.hidden_size)

    @abstractmethod
    def forward(self, tokens: TokenBatch, prefix: Prefix | None = None) -> Tensor:
        """Return the hidden states of ``tokens``, read after ``prefix`` if it is given."""


class PaddedBackbone(Backbone):
    """Backbone of a transformers encoder, which reads padded chunks of similarly long sequences."""

    def __init__(self, model: PreTrainedModel, pad_id: int) -> None:
        super().__init__(model)
        self._pad_id = pad_id
        # Decoders keep keys and values for tokens to come, of which there are none.
        keeps = "use_cache" in signature(model.forward).parameters
        self._options = {"use_cache": False} if keeps else {}

    def forward(self, tokens: TokenBatch, prefix: Prefix | None = None) -> Tensor:
        device = tokens.ids.device
        lengths = tokens.lengths + (prefix.length if prefix else 0)
        states, positions = [], []
        for rows in self._chunks(lengths, device):
            chunk = tokens.select(rows)
            states.append(self._padded_forward(chunk, prefix and prefix.select(rows)))
            positions.append(tokens.positions(rows))
        back = torch.cat(positions).argsort().to(device)
        return torch.cat(states)[back]

    def _chunks(self, lengths: Tensor, device: torch.device) -> list[Tensor]:
        """Return the rows that are padded and read together."""
        chunks = padding_plan(lengths, _CHUNK_COST.get(device.type, 512))
        if self.training or device.type != "cpu":
            return chunks
        parts: list[Tensor] = []
        for rows in chunks:
            count = -(-len(rows) * int(lengths[rows[-1]]) // _CPU_TOKENS)
            parts += rows.tensor_split(min(count, len(rows)))
        return parts

    def _padded_forward(self, chunk: TokenBatch, prefix: Prefix | None) -> Tensor:
        input_ids, mask = chunk.padded(self._pad_id)
        inputs = {"input_ids": input_ids, "attention_mask": mask}
        if self.reads_token_types:
            inputs["token_type_ids"] = torch.zeros_like(input_ids)
        if prefix is not None:
            inputs = prefixed_inputs(self.model, input_ids, mask, prefix)
        output: Any = self.model(**inputs, **self._options)
        hidden: Tensor = output.last_hidden_state[:, -input_ids.shape[1] :]
        # Positions of real tokens are found on the CPU, so that the device is not waited for.
        real = torch.arange(input_ids.shape[1]) < chunk.lengths[:, None]
        kept = real.flatten().nonzero().squeeze(1)
        return hidden.reshape(-1, hidden.shape[-1])[kept.to(hidden.device)]


class NeoBERTBackbone(Backbone):
    """Backbone of a NeoBERT, which reads tokens without padding."""

    model: NeoBERTModel

    def forward(self, tokens: TokenBatch, prefix: Prefix | None = None) -> Tensor:
        if prefix is None:
            return self.model.encode_tokens(tokens)
        words = self.model.encoder(tokens.ids)
        texts = words.split(tokens.lengths.tolist())
        # Rows of the prefix and of a text take turns.
        embeddings, positions = [], []
        for vectors, text in zip(prefix.vectors.to(words.dtype), texts, strict=True):
            embeddings += [vectors, text]
            positions += [prefix.positions, prefix.text_start + torch.arange(len(text))]
        states = self.model.encode_embeddings(
            torch.cat(embeddings), tokens.lengths + prefix.length, torch.cat(positions)
        )
        return torch.cat(states.split([len(rows) for rows in embeddings])[1::2])


def absolute_positions(model: nn.Module) -> int | None:
    """Return the number of positions in a model's position embedding, or ``None`` if it has none.

    Rows up to the padding index are not counted, since models with one, such as RoBERTa, number
    their positions after it.
    """
    for path, module in model.named_modules():
        name = path.rpartition(".")[2]
        if isinstance(module, nn.Embedding) and name in _POSITION_TABLES:
            padding = module.padding_idx
            unused = _POSITION_TABLES[name] if padding is None else padding + 1
            return module.num_embeddings - unused
    return None


def shape_of(model: PreTrainedModel) -> dict[str, Any]:
    """Return the entries of an encoder's configuration that affect its vectors."""
    return {
        key: value
        for key, value in model.config.to_dict().items()
        if not any(part in key for part in _OF_NO_VECTOR)
    }


def padding_plan(lengths: Tensor, chunk_cost: int) -> list[Tensor]:
    """Split sequences, sorted by length, into chunks of least total cost.

    A chunk costs its rows times its longest row, plus ``chunk_cost`` tokens. Sequences of one
    length stay together, so the search is over distinct lengths.

    Shapes: ``lengths`` ``(B,)``; each chunk holds rows in ``range(B)``, shortest first.
    """
    order = torch.argsort(lengths, stable=True)
    distinct, counts = torch.unique_consecutive(lengths[order], return_counts=True)
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    best = torch.zeros(len(distinct) + 1)
    starts = []
    for last in range(len(distinct)):
        rows = ends[last + 1] - ends[: last + 1]
        costs = best[: last + 1] + rows * distinct[last] + chunk_cost
        starts.append(int(costs.argmin()))
        best[last + 1] = costs.min()
    chunks, end = [], len(distinct)
    while end:
        start = starts[end - 1]
        chunks.append(order[int(ends[start]) : int(ends[end])])
        end = start
    return chunks[::-1]
