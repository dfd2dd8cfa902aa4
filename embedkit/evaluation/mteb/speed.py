"""Measures how fast a model encodes texts here, and how fast its vectors are searched."""

import time
from collections.abc import Sequence
from itertools import cycle, islice

import numpy as np

from embedkit.data.exact_search import ExactSearch, best_by, dot_products
from embedkit.models.contextual.model import Contextual
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.tokens.tokenizer import Tokenize

_BATCH = 64
_SECONDS = 5.0
"""Seconds for which samples are encoded, repeatedly if need be."""
_QUERIES, _DOCUMENTS = 500, 2**16
"""Numbers of random vectors that are searched."""


def tokens_per_second(model: EmbeddingModel, samples: Sequence[tuple[str, Sequence[str]]]) -> float:
    """Encode samples in turn for some seconds; each is a prompt with the texts behind it."""
    tokenize, context = Tokenize(model.tokenizer), model.frozen
    if isinstance(model, Contextual) and context is None:
        # A context fills all slots, and its contents do not change the speed.
        documents = [] if model.config.null_vector else [prose(99)] * model.config.num_context
        context = model.build_context(documents)
    tokens, spent = 0, 0.0
    # Each sample is repeated until it fills a batch.
    batches = [(prompt, [*islice(cycle(texts), _BATCH)]) for prompt, texts in samples]
    for number, (prompt, texts) in enumerate(cycle(batches)):
        began = time.perf_counter()
        model.encode(texts, prompt=prompt, context=context)
        seconds = time.perf_counter() - began
        if number == 0:
            continue  # The first call allocates memory and compiles kernels.
        tokens += tokenize(texts, prompt, model.max_tokens).num_tokens
        spent += seconds
        if spent > _SECONDS:
            break
    return tokens / spent


def pairs_per_second(model: EmbeddingModel) -> float:
    """Search random vectors as wide as the model's, of which a retrieval task keeps a thousand."""
    rng = np.random.default_rng(0)
    queries, documents = (
        rng.standard_normal((rows, model.width), np.float32) for rows in (_QUERIES, _DOCUMENTS)
    )
    search = ExactSearch(documents, model.device, best_by(dot_products))
    search.top(queries[:1], 1_000)  # The first call allocates memory.
    began = time.perf_counter()
    search.top(queries, 1_000)
    return _QUERIES * _DOCUMENTS / (time.perf_counter() - began)


def prose(characters: int) -> str:
    """Return English text of so many characters."""
    words = "the evaluation of a model that no text has been read for takes about as long "
    return (words * (characters // len(words) + 1))[:characters]
