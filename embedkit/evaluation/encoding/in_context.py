"""``ContextualEncoder``: a two-stage model, which reads some of a task before the task itself."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from embedkit.errors import UserError
from embedkit.evaluation.encoding.distributed_encoder import DistributedEncoder
from embedkit.evaluation.encoding.encoders import TextEncoder
from embedkit.models.contextual.context import Context
from embedkit.models.contextual.model import Contextual
from embedkit.storage.hashing import sha256_of_text


class ContextualEncoder:
    """A two-stage model as ``evaluate`` takes it: that draws a context from each task's corpus.

    Args:
        model: with an encoder of context documents, or with a frozen context, which then is that
            of all tasks.
        seed: of the draw.
        num_documents: of a context; a smaller corpus is taken whole. By default as many as the
            model has slots.
        ranks: share the encoding inside their ``run_on_main``; by default it is done on this rank.

    Raises:
        UserError: the model cannot read a context of so many documents.
    """

    def __init__(
        self,
        model: Contextual,
        *,
        seed: int = 0,
        num_documents: int | None = None,
        ranks: DistributedEncoder | None = None,
    ) -> None:
        self.name, self.prompts, self.frozen = model.name, model.prompts, model.frozen
        self.default_prompt_name = model.default_prompt_name
        slots = model.config.num_context
        self.num_documents = slots if num_documents is None else num_documents
        if self.num_documents < 0:
            raise UserError(f"a context of {num_documents} documents: ask for 0 to {slots}")
        model.slots.check(self.num_documents)
        self._model, self._seed = model, seed
        self._ranks = ranks or DistributedEncoder(model)

    @property
    def identity(self) -> str:
        """A hash of the model and of how contexts are drawn."""
        drawn = self.frozen.hash if self.frozen else f"{self._seed} {self.num_documents}"
        return sha256_of_text(f"{self._model.identity} {drawn}")

    def encode(
        self, texts: str | Sequence[str], *, prompt: str = "", show_progress: bool = False
    ) -> NDArray[np.float32]:
        """Embed texts in the frozen context; without one, tell that a context is needed."""
        return self._ranks.encode(texts, prompt=prompt)

    def build_context(self, corpus: Sequence[str], prompt: str) -> Context:
        """Draw documents, each behind ``prompt``, and embed them, on this rank alone."""
        documents = corpus
        if not self._model.config.null_vector and 0 < len(corpus) < self.num_documents:
            # As at the model's release: what fills its slots can only be documents.
            rows = np.arange(self.num_documents) % len(corpus)
            documents = [corpus[row] for row in rows.tolist()]
        context = self._model.build_context(
            documents, num_documents=self.num_documents, seed=self._seed, prompt=prompt
        )
        return replace(context, corpus_size=len(corpus))

    def within(self, context: Context) -> TextEncoder:
        """The encoder of texts in ``context``."""
        return _Within(self._model, context, self._ranks)


class _Within:
    """A two-stage model in one context."""

    def __init__(self, model: Contextual, context: Context, ranks: DistributedEncoder) -> None:
        self.name, self.prompts = model.name, model.prompts
        self.default_prompt_name = model.default_prompt_name
        # A frozen context is another model's, in whose hash this one's weights are not.
        self.identity = sha256_of_text(f"{model.identity} {context.hash}")
        self._context, self._ranks = context, ranks

    def encode(
        self, texts: str | Sequence[str], *, prompt: str = "", show_progress: bool = False
    ) -> NDArray[np.float32]:
        return self._ranks.encode(texts, prompt=prompt, context=self._context)
