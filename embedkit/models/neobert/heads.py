"""NeoBERT with a head: masked language modelling, and classification of sequences or tokens.

Every model takes padded input or ``tokens``, as the encoder does; its output for tokens has the
shape of its input.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import (
    MaskedLMOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

from embedkit.models.neobert.config import NeoBERTConfig
from embedkit.models.neobert.encoder import NeoBERTModel, NeoBERTPreTrainedModel
from embedkit.tokens.batch import TokenBatch

IGNORED = -100
"""Label of tokens that the loss ignores."""


class NeoBERTForMaskedLM(NeoBERTPreTrainedModel):
    """NeoBERT with a decoder to the vocabulary, whose weights are not tied to the embedding."""

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.model = NeoBERTModel(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        return self.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.decoder = new_embeddings

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        tokens: TokenBatch | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Return logits over the vocabulary and, with ``labels``, the mean loss.

        With labels in training mode ``logits`` is None, since logits of all tokens would need too
        much memory. A token whose label is -100 is not to be predicted.
        """
        encoded = self.model(
            input_ids, attention_mask, position_ids, inputs_embeds, tokens=tokens, **kwargs
        )
        hidden = encoded.last_hidden_state
        loss = logits = None
        if labels is not None:
            labelled = labels != IGNORED
            loss = _mean_loss(self.decoder(hidden[labelled]), labels[labelled], num_items_in_batch)
        if labels is None or not self.training:
            logits = self.decoder(hidden)
        output: Any = MaskedLMOutput
        return output(loss=loss, logits=logits, hidden_states=encoded.hidden_states)


class _Classifier(NeoBERTPreTrainedModel):
    """Base class of NeoBERT classifiers: the encoder, dropout, and a last linear layer."""

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        assert config.num_labels is not None
        self.model = NeoBERTModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def _init_weights(self, module: nn.Module) -> None:
        # Only the head is initialized here, since the encoder initializes its weights itself.
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=self.config.classifier_init_range)
            nn.init.zeros_(module.bias)


class NeoBERTForSequenceClassification(_Classifier):
    """NeoBERT with the paper's sequence classification head, two layers on the first token."""

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        tokens: TokenBatch | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Return logits ``(B, num_labels)`` and, with ``labels``, the loss of the problem type."""
        encoded = self.model(
            input_ids, attention_mask, position_ids, inputs_embeds, tokens=tokens, **kwargs
        )
        first = _first_states(encoded.last_hidden_state, attention_mask, tokens)
        pooled = self.dense(self.dropout(first)).tanh()
        logits = self.classifier(self.dropout(pooled))
        loss = None
        if labels is not None:
            loss = self.loss_function(
                labels=labels,
                pooled_logits=logits,
                config=self.config,
                num_items_in_batch=num_items_in_batch,
            )
        output: Any = SequenceClassifierOutput
        return output(loss=loss, logits=logits, hidden_states=encoded.hidden_states)


class NeoBERTForTokenClassification(_Classifier):
    """NeoBERT with a linear classifier on every token."""

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        tokens: TokenBatch | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> TokenClassifierOutput:
        """Return logits of every token and, with ``labels``, the mean loss, which ignores -100."""
        encoded = self.model(
            input_ids, attention_mask, position_ids, inputs_embeds, tokens=tokens, **kwargs
        )
        logits = self.classifier(self.dropout(encoded.last_hidden_state))
        loss = None
        if labels is not None:
            loss = _mean_loss(logits.flatten(0, -2), labels.flatten(), num_items_in_batch)
        output: Any = TokenClassifierOutput
        return output(loss=loss, logits=logits, hidden_states=encoded.hidden_states)


def _mean_loss(logits: Tensor, labels: Tensor, count: Tensor | int | None) -> Tensor:
    """Return the mean cross-entropy over labels that are not ignored, in fp32 or wider.

    If ``count`` is given, the sum is divided by it: the Trainer of transformers passes the number
    of labels in all batches of a step.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    return total / ((labels != IGNORED).sum().clamp(min=1) if count is None else count)


def _first_states(hidden: Tensor, mask: Tensor | None, tokens: TokenBatch | None) -> Tensor:
    """Return the state of each sequence's first token, ``(B, D)``; padding may precede it."""
    if tokens is not None:
        return hidden[tokens.offsets[:-1].to(hidden.device)]
    if mask is None:
        return hidden[:, 0]
    rows = torch.arange(len(hidden), device=hidden.device)
    return hidden[rows, mask.to(torch.int64).argmax(1)]
