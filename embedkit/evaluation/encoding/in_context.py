"""``ContextualEncoder``: a two-stage model that reads documents of a task before its texts."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from embedkit.errors import UserError
from embedkit.evaluation.encoding.encoders import DistributedEncoder
from embedkit.models.contextual.context import Context
from embedkit.models.contextual.model import Contextual
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.storage.hashing import sha256_of_text


class ContextualEncoder(DistributedEncoder):
    """A two-stage model that ``evaluate`` puts into a context of each task's corpus.

    Args:
        model: a model with an encoder of context documents, or with a frozen context, in which all
            tasks are then scored.
        seed: random seed for drawing documents.
        num_documents: number of documents of a context; a smaller corpus is used whole. By default
            one for every slot of the model.

    Raises:
        UserError: the model cannot read a context of so many documents.
    """

    _model: Contextual

    def __init__(
        self, model: Contextual, *, seed: int = 0, num_documents: int | None = None
    ) -> None:
        super().__init__(model)
        self.frozen, self._seed = model.frozen, seed
        slots = model.config.num_context
        self.num_documents = slots if num_documents is None else num_documents
        if self.num_documents < 0:
            raise UserError(f"a context of {num_documents} documents: ask for 0 to {slots}")
        model.slots.check(self.num_documents)

    @property
    def identity(self) -> str:
        """Hash of the model and its context, or of the model and how contexts are drawn."""
        # A frozen context is another model's, in whose hash this one's weights are not.
        drawn = self.frozen.hash if self.frozen else f"{self._seed} {self.num_documents}"
        return sha256_of_text(f"{self._model.identity} {drawn}")

    def within(self, context: Context) -> Self:
        """Return this encoder with ``context`` frozen, in which it encodes all texts."""
        frozen = copy(self)
        frozen.frozen = context
        return frozen

    def encode(
        self, texts: str | Sequence[str], *, prompt: str = "", context: Context | None = None
    ) -> NDArray[np.float32]:
        """Embed texts in ``context``, or else in the frozen one.

        Raises:
            UserError: there is no context.
        """
        # Another rank would refuse a copy of the model's own context as that of another model.
        frozen = None if self.frozen is self._model.frozen else self.frozen
        return super().encode(texts, prompt=prompt, context=context or frozen)

    def build_context(self, corpus: Sequence[str], prompt: str) -> Context:
        """Draw documents and embed them after ``prompt``, on this rank alone."""
        context = self._model.build_context(
            self._filling_slots(corpus),
            num_documents=self.num_documents,
            seed=self._seed,
            prompt=prompt,
        )
        return replace(context, corpus_size=len(corpus))

    def draw(self, corpus: Sequence[str]) -> list[str]:
        """Return the documents that ``build_context`` embeds, in their order."""
        documents = self._filling_slots(corpus)
        return self._model.draw(documents, num_documents=self.num_documents, seed=self._seed)

    def _filling_slots(self, corpus: Sequence[str]) -> Sequence[str]:
        if self._model.config.null_vector or not 0 < len(corpus) < self.num_documents:
            return corpus
        # The released models, too, repeat documents: they have nothing else to fill slots with.
        rows = np.arange(self.num_documents) % len(corpus)
        return [corpus[row] for row in rows.tolist()]


def encoder_of(model: EmbeddingModel) -> DistributedEncoder:
    """Return a model of one stage or two as ``evaluate`` takes it."""
    return ContextualEncoder(model) if isinstance(model, Contextual) else DistributedEncoder(model)
