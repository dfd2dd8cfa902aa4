"""NeoBERT with a head: masked language modelling, and classifying sequences or tokens.

Every model takes padded input or ``tokens``, as the encoder does; what it says of each token then
has the shape of its input.
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
"""The label of a token that the loss passes over."""


class NeoBERTForMaskedLM(NeoBERTPreTrainedModel):
    """The encoder and a decoder to the vocabulary, which is not its embedding."""

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
        """Logits over the vocabulary, and with ``labels`` their mean loss.

        Training with labels gives no logits: the loss takes those of labelled tokens alone, and
        all of them would not fit beside it.

        Shapes: ``labels`` as ``input_ids``, with -100 where there is nothing to guess.
        """
        encoded = self.model(
            input_ids, attention_mask, position_ids, inputs_embeds, tokens=tokens, **kwargs
        )
        hidden = encoded.last_hidden_state
        loss = logits = None
        if labels is not None:
            guessed = labels != IGNORED
            loss = _mean_loss(self.decoder(hidden[guessed]), labels[guessed], num_items_in_batch)
        if labels is None or not self.training:
            logits = self.decoder(hidden)
        output: Any = MaskedLMOutput
        return output(loss=loss, logits=logits, hidden_states=encoded.hidden_states)


class _Classifier(NeoBERTPreTrainedModel):
    """The encoder, dropout, and a linear classifier of what comes last."""

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        assert config.num_labels is not None
        self.model = NeoBERTModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def _init_weights(self, module: nn.Module) -> None:
        # Reaches the head alone: the encoder inside is a model with initial weights of its own.
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=self.config.classifier_init_range)
            nn.init.zeros_(module.bias)


class NeoBERTForSequenceClassification(_Classifier):
    """The encoder and the paper's head of two layers on the first token."""

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
        """Logits ``(B, num_labels)``, and with ``labels`` the loss of the config's problem type."""
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
    """The encoder and a linear classifier on every token."""

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
        """Logits for every token, and with ``labels``, -100 passed over, their mean loss."""
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
    """Cross-entropy in fp32 or wider, by the number of labels.

    ``count`` is what transformers' Trainer gives: the labels of all the batches that make one step.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    return total / ((labels != IGNORED).sum().clamp(min=1) if count is None else count)


def _first_states(hidden: Tensor, mask: Tensor | None, tokens: TokenBatch | None) -> Tensor:
    """The state of each sequence's first token, ``(B, D)``; padding may stand before it."""
    if tokens is not None:
        return hidden[tokens.offsets[:-1].to(hidden.device)]
    if mask is None:
        return hidden[:, 0]
    rows = torch.arange(len(hidden), device=hidden.device)
    return hidden[rows, mask.to(torch.int64).argmax(1)]
