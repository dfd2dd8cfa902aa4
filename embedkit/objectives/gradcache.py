"""Gradient caching: encode without a graph now, back-propagate chunk by chunk later."""

from collections.abc import Callable

import torch
from torch import Tensor

from embedkit import rng
from embedkit.data.pairs.contrastive_batches import ContrastiveBatch
from embedkit.tokens.batch import TokenBatch, chunks_by_budget


class Replay:
    """Embeddings of a batch whose activations are recomputed chunk by chunk in the backward pass.

    A batch of any size then costs the memory of one chunk (Gao et al., 2021, "Scaling Deep
    Contrastive Learning Batch Size under Memory Limited Setup"). Every chunk draws its dropout
    from its own random key, so that the second forward pass repeats the first.

    Usage::

        documents = Replay(encode, tokens, budget=16_384, key=key)
        loss(documents.embeddings).backward()   # stops at the embeddings
        documents.backward()                    # reaches the parameters

    Replays nest: an encoder may read the embeddings of another replay, whose gradient accumulates
    over all chunks of every replay that reads it. Call ``backward`` of the readers first::

        context = Replay(first, documents, budget=16_384, key=one)
        texts = Replay(partial(second, context=context.embeddings), tokens, ...)
        loss(texts.embeddings).backward()
        texts.backward()                        # reaches the second encoder and the context
        context.backward()                      # reaches the first encoder

    With ``cached=False`` the same chunks keep their graphs, which gives the same numbers at the
    cost of more memory. A ``budget`` of ``None`` makes one chunk, which is never recomputed.

    Args:
        encode: encoder that maps a ``TokenBatch`` to its embeddings.
        tokens: token ids of the whole batch.
        budget: largest number of tokens of a padded chunk, ``overhead`` of each sequence included.
        key: random key of this batch.
        cached: whether chunks are encoded a second time in the backward pass.
        overhead: tokens to add to each sequence's length, such as a context in front of it.

    Shapes: ``embeddings`` is ``(B, D)``, in the order of ``tokens``.
    """

    def __init__(
        self,
        encode: Callable[[TokenBatch], Tensor],
        tokens: TokenBatch,
        *,
        budget: int | None,
        key: int,
        cached: bool = True,
        overhead: int = 0,
    ) -> None:
        self._encode, self._tokens, self._key = encode, tokens, key
        self._cached = cached and budget is not None
        self._chunks = chunks_by_budget(tokens.lengths + overhead, budget)
        with torch.set_grad_enabled(not self._cached):
            parts = [self._forward(number) for number in range(len(self._chunks))]
        back = torch.cat(self._chunks).argsort().to(parts[0].device)
        self._joined = torch.cat(parts)[back]
        # Uncached graphs are detached here too: several chunks of another replay may back-propagate
        # into these embeddings, and a graph can be traversed only once.
        self.embeddings = self._joined.detach().requires_grad_()

    def backward(self) -> None:
        """Back-propagate the gradient of ``embeddings`` to the parameters of the encoder."""
        gradient = self.embeddings.grad
        assert gradient is not None, "back-propagate the loss first"
        if not self._cached:
            self._joined.backward(gradient)
            return
        for number, chunk in enumerate(self._chunks):
            self._forward(number).backward(gradient[chunk.to(gradient.device)])

    def _forward(self, number: int) -> Tensor:
        torch.manual_seed(rng.fold_in(self._key, number))
        return self._encode(self._tokens.select(self._chunks[number]))


def replay_pairs(
    encode: Callable[[TokenBatch], Tensor],
    batch: ContrastiveBatch,
    *,
    budget: int | None,
    key: int,
    overhead: int = 0,
) -> tuple[Replay, Replay]:
    """Encode the queries and the documents of a batch, each side under a key of its own.

    Where both sides take no more memory than one chunk, their graphs are kept, and nothing is
    encoded twice. The arguments are those of ``Replay``.
    """
    sides = {"queries": batch.queries, "documents": batch.documents}
    padded = sum(side.padded_tokens(overhead) for side in sides.values())
    cached = budget is not None and padded > budget
    queries, documents = (
        Replay(
            encode,
            tokens,
            budget=budget,
            key=rng.fold_in(key, role),
            cached=cached,
            overhead=overhead,
        )
        for role, tokens in sides.items()
    )
    return queries, documents
