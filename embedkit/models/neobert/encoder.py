"""``NeoBERTModel``: a pre-norm encoder that reads concatenated sequences without padding.

Shapes: T tokens of all sequences, D features; for padded input B sequences of L columns.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput

from embedkit.errors import UserError
from embedkit.models import rope
from embedkit.models.attention import Layout, choose_kernel
from embedkit.models.neobert.config import NeoBERTConfig
from embedkit.tokens.batch import TokenBatch


class SwiGLU(nn.Module):
    """Feed-forward block ``w3(silu(gate) * up)``, where ``w12`` computes gate and up together."""

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__()
        self.w12 = nn.Linear(config.hidden_size, 2 * config.ffn_width, bias=False)
        self.w3 = nn.Linear(config.ffn_width, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w12(x).chunk(2, dim=-1)
        return self.w3(F.silu(gate) * up)


class GELU(nn.Module):
    """Feed-forward block of BERT, without biases."""

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.ffn_width, bias=False)
        self.down = nn.Linear(config.ffn_width, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class EncoderBlock(GradientCheckpointingLayer):
    """Pre-norm transformer block: attention and feed-forward, both with a residual connection."""

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self._head_dim = config.head_dim
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.wo = nn.Linear(width, width, bias=False)
        self.ffn = SwiGLU(config) if config.hidden_act == "swiglu" else GELU(config)
        self.attention_norm = _norm(config)
        self.ffn_norm = _norm(config)

    def forward(self, x: Tensor, rotations: Tensor | None, layout: Layout) -> Tensor:
        x = x + self._attention(self.attention_norm(x), rotations, layout)
        return x + self.ffn(self.ffn_norm(x))

    def _attention(self, x: Tensor, rotations: Tensor | None, layout: Layout) -> Tensor:
        # The rows of qkv are grouped by head: q, k and v of the first head, then of the second.
        q, k, v = self.qkv(x).unflatten(-1, (-1, 3 * self._head_dim)).chunk(3, dim=-1)
        if rotations is not None:
            q, k = rope.rotate(q, rotations), rope.rotate(k, rotations)
        return self.wo(layout.kernel(q, k, v, layout).flatten(1))


class NeoBERTPreTrainedModel(PreTrainedModel):
    """Base class of NeoBERT models: configuration, initial weights, features for transformers."""

    config: NeoBERTConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _input_embed_layer = "encoder"
    _no_split_modules = ["EncoderBlock"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_flash_attn = True

    def _init_weights(self, module: nn.Module) -> None:
        # transformers patches these functions so that they leave loaded weights unchanged.
        if isinstance(module, nn.Linear):
            limit = self.config.decoder_init_range
            nn.init.uniform_(module.weight, -limit, limit)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            limit = self.config.embedding_init_range
            nn.init.uniform_(module.weight, -limit, limit)
        else:
            super()._init_weights(module)


class NeoBERTModel(NeoBERTPreTrainedModel):
    """NeoBERT encoder without a head: token ids in, normed hidden states out."""

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.encoder = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        if config.position == "absolute":
            # As in the published code, row 0 is for padding, and position p has row p + 1.
            self.positional_embedding = nn.Embedding(config.max_position_embeddings + 1, width)
        blocks = (EncoderBlock(config) for _ in range(config.num_hidden_layers))
        self.transformer_encoder = nn.ModuleList(blocks)
        self.layer_norm = _norm(config)
        self.post_init()

    def encode_tokens(self, tokens: TokenBatch) -> Tensor:
        """Return the hidden states of sequences without padding.

        Shapes: T tokens -> ``(T, D)``, in the order of their ids.
        """
        starts = tokens.offsets[:-1].repeat_interleave(tokens.lengths)
        positions = torch.arange(tokens.num_tokens) - starts
        return self.encode_embeddings(self.encoder(tokens.ids), tokens.lengths, positions)

    def encode_embeddings(self, embeddings: Tensor, lengths: Tensor, positions: Tensor) -> Tensor:
        """Return the hidden states of sequences of vectors, which need not be embedded tokens.

        Shapes: T vectors ``(T, D)``; ``lengths`` ``(B,)`` and ``positions`` ``(T,)``, both on the
        CPU -> ``(T, D)``.
        """
        return self._states(embeddings, lengths, positions, keep=False)[-1]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        *,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Encode padded sequences of token ids or embeddings.

        Padding may be anywhere in a row; its hidden states are zero. ``hidden_states`` are the
        embeddings and the outputs of all blocks, of which the last is ``last_hidden_state``.

        Shapes: ``(B, L)``, or ``(B, L, D)`` for ``inputs_embeds`` -> ``(B, L, D)``.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise UserError("pass exactly one of input_ids and inputs_embeds")
        keep = output_hidden_states
        keep = bool(self.config.output_hidden_states) if keep is None else keep
        given: Any = inputs_embeds if input_ids is None else input_ids
        batch, width = given.shape[:2]
        if attention_mask is None:
            attention_mask = given.new_ones(batch, width, dtype=torch.bool)
        rows, columns = attention_mask.nonzero(as_tuple=True)
        embeddings = given[rows, columns]
        if inputs_embeds is None:
            embeddings = self.encoder(embeddings)
        positions = columns
        if position_ids is not None:
            positions = position_ids.expand(batch, width)[rows, columns]
        lengths = torch.bincount(rows, minlength=batch).cpu()
        states = [
            state.new_zeros(batch, width, state.shape[-1]).index_put((rows, columns), state)
            for state in self._states(embeddings, lengths, positions, keep)
        ]
        output: Any = BaseModelOutput
        return output(last_hidden_state=states[-1], hidden_states=tuple(states) if keep else None)

    def _states(self, x: Tensor, lengths: Tensor, positions: Tensor, keep: bool) -> list[Tensor]:
        """Return the normed output of the last block; with ``keep``, all blocks' inputs first."""
        config, device, dtype = self.config, x.device, x.dtype
        if torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)
        kernel = choose_kernel(config._attn_implementation, device, dtype, config.head_dim)
        layout = Layout.of(lengths, kernel, device)
        positions = layout.sort(positions.to(device))
        x, rotations = layout.sort(x), None
        if config.position == "rope":
            precision = torch.promote_types(self.dtype, torch.float32)
            rotations = rope.rotations(config, positions, precision)
        else:
            longest, limit = int(lengths.max()), config.max_position_embeddings
            if longest > limit:
                raise UserError(
                    f"a sequence of {longest} tokens: the model has {limit} positions; cut the text"
                )
            x = x + self.positional_embedding(positions + 1)
        states = []
        for block in self.transformer_encoder:
            if keep:
                states.append(layout.unsort(x))
            x = block(x, rotations, layout)
        return [*states, layout.unsort(self.layer_norm(x))]


def _norm(config: NeoBERTConfig) -> nn.Module:
    kind = nn.RMSNorm if config.norm == "rmsnorm" else nn.LayerNorm
    return kind(config.hidden_size, eps=config.norm_eps)
