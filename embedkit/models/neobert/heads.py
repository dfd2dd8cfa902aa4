"""NeoBERT with a head: masked language modelling, and classification of sequences or tokens."""

from collections.abc import Callable
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

IGNORED = -100
"""Label of tokens that the loss ignores."""


class _WithHead(NeoBERTPreTrainedModel):
    """Base class of NeoBERTs with a head, which a subclass adds and applies in ``_predict``."""

    _output: Any
    """Class of transformers for the output."""
    _predict: Callable[..., tuple[Tensor | None, Tensor | None]]
    """Returns loss and logits, given hidden states, labels, ``count`` as in ``_mean_loss``, and
    the attention mask."""

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.model = NeoBERTModel(config)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return logits and, with ``labels``, the loss, in the output class of transformers."""
        encoded = self.model(input_ids, attention_mask, position_ids, inputs_embeds, **kwargs)
        hidden = encoded.last_hidden_state
        loss, logits = self._predict(hidden, labels, num_items_in_batch, attention_mask)
        return self._output(loss=loss, logits=logits, hidden_states=encoded.hidden_states)


class NeoBERTForMaskedLM(_WithHead):
    """NeoBERT with a decoder to the vocabulary, whose weights are not tied to the embedding.

    The loss is the mean over tokens whose label is not -100. With labels in training mode
    ``logits`` is None, since logits of all tokens would need too much memory.
    """

    _output = MaskedLMOutput

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        return self.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.decoder = new_embeddings

    def _predict(self, hidden: Tensor, labels: Tensor | None, count: Any, *_: Any) -> Any:
        if labels is None:
            return None, self.decoder(hidden)
        labelled = labels != IGNORED
        loss = _mean_loss(self.decoder(hidden[labelled]), labels[labelled], count)
        return loss, None if self.training else self.decoder(hidden)


class _Classifier(_WithHead):
    """Base class of NeoBERT classifiers: the encoder, dropout, and a last linear layer."""

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        assert config.num_labels is not None
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def _init_weights(self, module: nn.Module) -> None:
        # Only the head is initialized here, since the encoder initializes its weights itself.
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=self.config.classifier_init_range)
            nn.init.zeros_(module.bias)


class NeoBERTForSequenceClassification(_Classifier):
    """NeoBERT with the paper's sequence classification head, two layers on the first token.

    Logits are ``(B, num_labels)``, and the loss is that of the configuration's problem type.
    """

    _output = SequenceClassifierOutput

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.post_init()

    def _predict(
        self, hidden: Tensor, labels: Tensor | None, count: Any, mask: Tensor | None
    ) -> Any:
        first = hidden[:, 0]
        if mask is not None:
            # Padding may precede the first token.
            rows = torch.arange(len(hidden), device=hidden.device)
            first = hidden[rows, mask.to(torch.int64).argmax(1)]
        logits = self.classifier(self.dropout(self.dense(self.dropout(first)).tanh()))
        if labels is None:
            return None, logits
        named = {"labels": labels, "pooled_logits": logits, "config": self.config}
        return self.loss_function(**named, num_items_in_batch=count), logits


class NeoBERTForTokenClassification(_Classifier):
    """NeoBERT with a linear classifier on every token; the mean loss ignores the label -100."""

    _output = TokenClassifierOutput

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.post_init()

    def _predict(self, hidden: Tensor, labels: Tensor | None, count: Any, *_: Any) -> Any:
        logits = self.classifier(self.dropout(hidden))
        if labels is None:
            return None, logits
        return _mean_loss(logits.flatten(0, -2), labels.flatten(), count), logits


def _mean_loss(logits: Tensor, labels: Tensor, count: Tensor | int | None) -> Tensor:
    """Return the mean cross-entropy over labels that are not ignored, in fp32 or wider.

    If ``count`` is given, the sum is divided by it: the Trainer of transformers passes the number
    of labels in all batches of a step.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    return total / ((labels != IGNORED).sum().clamp(min=1) if count is None else count)
