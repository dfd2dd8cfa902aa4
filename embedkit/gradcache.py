"""Gradient caching: encode without a graph now, back-propagate chunk by chunk later."""

from collections.abc import Callable

import torch
from torch import Tensor

from embedkit import keyed
from embedkit.tokens import TokenBatch, chunks_by_budget


class Replay:
    """Embeddings of a batch whose activations are made a second time, chunk by chunk.

    A batch of any size then costs the memory of one chunk (Gao et al., 2021, "Scaling Deep
    Contrastive Learning Batch Size under Memory Limited Setup"). Every chunk draws its dropout
    from its own key, so that the second forward repeats the first.

    Usage::

        documents = Replay(encode, tokens, budget=16_384, key=key)
        loss(documents.embeddings).backward()   # stops at the embeddings
        documents.backward()                    # reaches the parameters

    With ``cached=False`` the same chunks keep their graphs: the same numbers, more memory, and
    ``backward`` has nothing left to do. A ``budget`` of ``None`` is one chunk, never cached.

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
    ) -> None:
        self._encode, self._key = encode, key
        self._cached = cached and budget is not None
        self._chunks = chunks_by_budget(tokens.lengths, budget)
        self._tokens = [tokens.select(chunk) for chunk in self._chunks]
        with torch.set_grad_enabled(not self._cached):
            parts = [self._forward(number) for number in range(len(self._chunks))]
        back = torch.cat(self._chunks).argsort().to(parts[0].device)
        self.embeddings = torch.cat(parts)[back]
        if self._cached:
            self.embeddings.requires_grad_()

    def backward(self) -> None:
        """Carry the gradient of ``embeddings`` on to the parameters."""
        if not self._cached:
            return
        assert self.embeddings.grad is not None, "back-propagate the loss first"
        for number, chunk in enumerate(self._chunks):
            wanted = self.embeddings.grad[chunk.to(self.embeddings.device)]
            self._forward(number).backward(wanted)

    def _forward(self, number: int) -> Tensor:
        torch.manual_seed(keyed.key(self._key, number))
        return self._encode(self._tokens[number])
