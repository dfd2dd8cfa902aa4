"""A two-stage model small enough for the tests of evaluation, which notes its contexts."""

from collections.abc import Mapping

import torch
from support.tiny_bert import real_tokenizer, tiny_bert
from torch import Tensor

from embedkit.models.backbones import PaddedBackbone
from embedkit.models.contextual.model import Contextual
from embedkit.recipe import ContextualConfig
from embedkit.tokens.batch import TokenBatch

PROMPTS = {
    "search_query": "search query: ",
    "search_document": "search document: ",
    "classification": "classify: ",
    "clustering": "cluster: ",
}


class Noting(Contextual):
    """Keeps the texts of each batch of context documents, as their tokens read."""

    contexts: list[list[str]]

    def embed_context(self, tokens: TokenBatch) -> Tensor:
        texts = tokens.ids.split(tokens.lengths.tolist())
        self.contexts.append([str(self.tokenizer.decode(ids[1:-1])) for ids in texts])
        return super().embed_context(tokens)


def tiny_contextual(
    *, num_context: int = 8, null_vector: bool = True, prompts: Mapping[str, str] = PROMPTS
) -> Noting:
    """Two stages of two random layers each, the same at every call."""
    first, second = tiny_bert(dropout=0), tiny_bert(dropout=0)
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.copy_(parameter.roll(1, 0))
    model = Noting(
        PaddedBackbone(first, pad_id=0),
        PaddedBackbone(second, pad_id=0),
        real_tokenizer(),
        ContextualConfig(
            num_context=num_context, null_vector=null_vector, context_dropout=0.005 * null_vector
        ),
        prompts=prompts,
        max_tokens=64,
        position_limit=128,
        name="tiny",
    )
    model.contexts = []
    return model.eval()
