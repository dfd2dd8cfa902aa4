"""``Contextual``: one encoder for context documents, and another for texts in their context.

Shapes: n <= J context documents, B texts of T tokens in all, S soft prompts, D features.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from embedkit import rng
from embedkit.errors import UserError
from embedkit.models.backbones import Backbone, PaddedBackbone, shape_of
from embedkit.models.contextual import prefix
from embedkit.models.contextual.context import Context, Embeddings
from embedkit.models.contextual.slots import InitializedSlots
from embedkit.models.embedder import Embedder
from embedkit.models.embedding_model import EmbeddingModel, Role
from embedkit.models.head import Projection
from embedkit.models.pooling import mean_by_text
from embedkit.recipe import ContextualConfig
from embedkit.storage.hashing import sha256_of, sha256_of_json
from embedkit.tokens.batch import TokenBatch
from embedkit.tokens.tokenizer import identity_of

# Others bias attention by distance in the sequence, or do not accept vectors instead of tokens.
_ARCHITECTURES = ("bert", "eurobert", "modernbert", "nomic_bert", "roberta", "xlm-roberta")
"""Model types of transformers that can read a prefix; a NeoBERT can too, without padding."""

# A flash kernel takes no mask, and reads the positions of a prefix as many texts packed in one row.
KERNELS = ("sdpa", "eager")
"""Implementations of attention with which encoders of transformers can read a prefix."""


class Contextual(EmbeddingModel):
    """Embedding model whose vector of a text depends on documents of the corpus to search.

    The first encoder embeds J context documents, each as the mean of its hidden states. The second
    reads those vectors in front of the text's tokens, and the mean of its states over the tokens
    alone is the text's vector (Morris and Rush, 2024, "Contextual Document Embeddings", section 3;
    NeoBERT, appendix G). Queries and documents are read alike, in a context of documents.

    Args:
        first: encoder of context documents; ``None`` if only ``frozen`` is to be read. Poolers of
            both encoders are removed.
        second: encoder of texts, and of context documents too if ``config.tied``.
        tokenizer: tokenizer of both encoders, with truncation and padding switched off.
        config: settings of the layers that join the encoders.
        position_limit: number of positions that the encoders have.
        normalize: whether vectors are scaled to unit norm.
        shared: other settings of every ``EmbeddingModel``.
    """

    pooling = "mean"

    def __init__(
        self,
        first: Backbone | None,
        second: Backbone,
        tokenizer: PreTrainedTokenizerBase,
        config: ContextualConfig,
        *,
        position_limit: int,
        normalize: bool = True,
        **shared: Any,
    ) -> None:
        super().__init__(tokenizer, position_limit=position_limit - config.text_start, **shared)
        self.config, self.normalize = config, normalize
        # Exported folders run the encoders without token types.
        for stage in filter(None, (first, second)):
            stage.reads_token_types = False
        if isinstance(second, PaddedBackbone):
            _prepare_to_read(second.model, self.name)
        if self.position_limit < 3:
            raise UserError(
                f"{self.name}: reads {position_limit} tokens, and {config.text_start} positions "
                "are taken in front of a text; set position_free = true"
            )
        self.max_tokens = min(self.max_tokens, self.position_limit)
        # A tied encoder is stored under one name, since safetensors refuses shared weights.
        self.second, self._own_first = second, None if config.tied else first
        for backbone in filter(None, (self.second, self._own_first)):
            without_pooler(backbone.model)
        self._hashed: tuple[object, str] = (None, "")
        with torch.random.fork_rng(devices=()):
            # A fixed seed gives the same initial weights in every process.
            torch.manual_seed(0)
            words: Any = second.model.get_input_embeddings()
            self.slots = InitializedSlots(config, words.weight)
            self.context_projection = self.output_projection = None
            if config.context_projection:
                self.context_projection = prefix.two_layers(second.width, nn.GELU())
            if config.output_projection:
                self.output_projection = prefix.two_layers(second.width, nn.ReLU())

    @classmethod
    def around(cls, embedder: Embedder, config: ContextualConfig) -> Self:
        """Return a model with two copies of an embedder's encoder, or with one if tied.

        Raises:
            UserError: the embedder has Dense modules, for which two stages have no place.
        """
        if any(isinstance(module, Projection) for module in embedder.head):
            raise UserError(
                f"{embedder.name}: has Dense modules, for which a contextual model has no place; "
                "pass the folder of its encoder alone"
            )
        return cls(
            None if config.tied else deepcopy(embedder.backbone),
            embedder.backbone,
            embedder.tokenizer,
            config,
            prompts=embedder.prompts,
            max_tokens=embedder.max_tokens,
            position_limit=embedder.position_limit,
            name=embedder.name,
            autocast=embedder.autocast,
            trained_prompts=embedder.trained_prompts,
        ).to(embedder.device)

    @property
    def first(self) -> Backbone | None:
        """Encoder of context documents, or None."""
        return self.second if self.config.tied else self._own_first

    def embed_context(self, tokens: TokenBatch) -> Tensor:
        """Embed context documents for ``forward``. Shapes: n -> ``(n, D)``, fp32 or wider."""
        if self.first is None:
            raise UserError(f"{self.name}: has a frozen context and no encoder for another")
        with self._precision():
            hidden = self.first(tokens)
        vectors = mean_by_text(hidden, tokens, include_prompt=True)
        return vectors if self.context_projection is None else self.context_projection(vectors)

    def forward(self, tokens: TokenBatch, context: Tensor) -> Tensor:
        """Embed texts in a context, of which texts drop slots at random in training.

        Shapes: B texts and ``(n, D)`` of n <= J -> ``(B, D)``, fp32 or wider.

        Raises:
            UserError: there are more than J documents, or fewer and no null vector.
        """
        with self._precision():
            hidden = self.second(tokens, self.slots(context, len(tokens)))
        vectors = mean_by_text(hidden, tokens, include_prompt=self.config.include_prompt)
        if self.output_projection is not None:
            projected = self.output_projection(vectors)
            vectors = projected + vectors if self.config.output_residual else projected
        return F.normalize(vectors, dim=-1) if self.normalize else vectors

    def draw(
        self, corpus: Sequence[str], *, num_documents: int | None = None, seed: int = 0
    ) -> list[str]:
        """Return the documents of a context; arguments and errors are ``build_context``'s."""
        if isinstance(corpus, str):
            raise UserError("the corpus is a single str: pass a list of documents")
        slots = self.config.num_context
        count = slots if num_documents is None else num_documents
        if not 0 <= count <= slots:
            raise UserError(f"num_documents = {count}: the model has {slots} slots; ask for fewer")
        count = min(count, len(corpus))
        self.slots.check(count)
        rows = rng.permuted(np.arange(count), max(len(corpus), 1), rng.fold_in(seed, "context"))
        return [corpus[int(row)] for row in rows]

    @torch.inference_mode()
    def build_context(
        self,
        corpus: Sequence[str],
        *,
        num_documents: int | None = None,
        seed: int = 0,
        prompt: str | None = None,
        show_progress: bool = False,
    ) -> Context:
        """Draw documents of a corpus and embed them, for any number of calls of ``encode``.

        Args:
            corpus: texts of documents, never queries or labels.
            num_documents: number of documents to draw without replacement, by default one for every
                slot of the model; a smaller corpus is used whole.
            seed: random seed of the draw of documents.
            prompt: literal prefix of each document; by default the model's prompt for documents.
            show_progress: whether to show a progress bar.

        Raises:
            UserError: the model has fewer slots, or the corpus is a single text.
        """
        texts = self.draw(corpus, num_documents=num_documents, seed=seed)
        if prompt is None:
            prompt = self.prompts.get("document", "")
        vectors = self._embed(
            texts, prompt, self.embed_context, side="document", show_progress=show_progress
        )
        return Context(torch.from_numpy(vectors), self.weights_identity, len(corpus), seed)

    def encode(
        self,
        texts: str | Sequence[str],
        *,
        role: Role | None = None,
        prompt: str | None = None,
        context: Context | None = None,
        **options: Any,
    ) -> Embeddings:
        """Embed texts as ``EmbeddingModel.encode`` does; the vectors record their context."""
        context = context or self.frozen
        if context is None:
            raise UserError(
                f"{self.name}: a text's vector depends on its corpus; pass "
                "context=model.build_context(corpus), or build_context([]) for none"
            )
        if context is not self.frozen:
            self.check_made(context)
        if prompt is None:
            role = role or "document"
        vectors = super().encode(texts, role=role, prompt=prompt, context=context, **options)
        return Embeddings(vectors, context.hash)

    def _reader(self, context: Context | None) -> Callable[[TokenBatch], Tensor]:
        assert context is not None
        return partial(self, context=context.vectors.to(self.device))

    def save(self, folder: str | Path, *, card: str = "") -> None:
        from embedkit.models.contextual.export import write_contextual

        write_contextual(self, Path(folder), card=card)

    @property
    def width(self) -> int:
        return self.second.width

    @property
    def is_unit_norm(self) -> bool:
        return self.normalize

    @property
    def positions_before_text(self) -> int:
        return self.config.num_prefix

    def check_made(self, context: Context) -> None:
        """Raise ``UserError`` unless a model with this one's weights made ``context``."""
        if context.model != self.weights_identity:
            raise UserError(
                f"the context was made by another model than {self.name}; build it anew"
            )

    @property
    def weights_identity(self) -> str:
        """SHA-256 of weights, tokenizer, prompts and lengths, to which a context is bound."""
        return sha256_of_json(self._described(), default=str)

    @property
    def identity(self) -> str:
        settings = {
            "autocast": str(self.autocast),
            "normalize": self.normalize,
            "similarity": self.similarity,
        }
        return sha256_of_json({**self._described(), **settings}, default=str)

    def _described(self) -> dict[str, Any]:
        return {
            "weights": self._hash_of_weights(),
            "config": self.config.model_dump(),
            "encoders": [shape_of(stage.model) for stage in (self.first, self.second) if stage],
            # It is recomputed, since changes of a tokenizer leave no trace.
            "tokenizer": identity_of(self.tokenizer),
            "prompts": self.prompts,
            "max_tokens": self.max_tokens,
        }

    def _hash_of_weights(self) -> str:
        """Return the hash of the weights, recomputed only when they may have changed."""
        weights = self.state_dict()
        versions = [(weight.data_ptr(), weight._version) for weight in weights.values()]
        # A fused optimizer changes tensors without a new version, so that steps are counted too.
        version = (*_optimizer_steps(), versions)
        if self._hashed[0] != version:
            self._hashed = (version, sha256_of(weights))
        return self._hashed[1]

    def head_weights(self) -> dict[str, Tensor]:
        """Return the weights that are not part of the encoders, by name."""
        weights: dict[str, Tensor] = self.state_dict()
        encoders = ("second.", "_own_first.")
        return {name: head for name, head in weights.items() if not name.startswith(encoders)}


def without_pooler(network: Any) -> Any:
    """Remove an encoder's pooler, which would be stored but neither used nor trained."""
    if hasattr(network, "pooler"):
        network.pooler = None
    return network


def _prepare_to_read(model: PreTrainedModel, name: str) -> None:
    """Refuse architectures that cannot read a prefix; replace a flash kernel by ``sdpa``."""
    kind = model.config.model_type
    if kind not in _ARCHITECTURES:
        raise UserError(
            f"{name}: a {kind} cannot read context vectors; choose a neobert, "
            f"{', '.join(_ARCHITECTURES)}"
        )
    if model.config._attn_implementation not in KERNELS:
        model.set_attn_implementation("sdpa")


@cache
def _optimizer_steps() -> list[int]:
    """Return a list of one number, which counts this process's optimizer steps from now on."""
    steps = [0]

    def count(*_: object) -> None:
        steps[0] += 1

    register_optimizer_step_post_hook(count)
    return steps
