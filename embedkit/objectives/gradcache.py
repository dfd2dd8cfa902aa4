"""Gradient caching: encode without a graph now, back-propagate chunk by chunk later."""

from collections.abc import Callable

import torch
from torch import Tensor

from embedkit import rng
from embedkit.tokens.batch import TokenBatch, chunks_by_budget


class Replay:
    """Embeddings of a batch whose activations are made a second time, chunk by chunk.

    A batch of any size then costs the memory of one chunk (Gao et al., 2021, "Scaling Deep
    Contrastive Learning Batch Size under Memory Limited Setup"). Every chunk draws its dropout
    from its own key, so that the second forward repeats the first.

    Usage::

        documents = Replay(encode, tokens, budget=16_384, key=key)
        loss(documents.embeddings).backward()   # stops at the embeddings
        documents.backward()                    # reaches the parameters

    Replays nest: an encoder may itself read the embeddings of another one, whose gradient gathers
    over all chunks of all that read it. Go back through the readers first::

        context = Replay(first, documents, budget=16_384, key=one)
        texts = Replay(partial(second, context=context.embeddings), tokens, ...)
        loss(texts.embeddings).backward()
        texts.backward()                        # reaches the second encoder and the context
        context.backward()                      # reaches the first encoder

    With ``cached=False`` the same chunks keep their graphs: the same numbers, more memory. A
    ``budget`` of ``None`` is one chunk, never cached.

    Args:
        encode: tokens to their embeddings.
        tokens: of the whole batch.
        budget: tokens of a chunk, ``overhead`` for each of its sequences included.
        key: names the randomness of this batch.
        cached: whether chunks are encoded a second time.
        overhead: what a sequence costs beside its own tokens, as a context in front of each.

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
        # A graph that is kept stops here too: chunks that read these embeddings go back one after
        # another, and a graph can be gone through once.
        self.embeddings = self._joined.detach().requires_grad_()

    def backward(self) -> None:
        """Carry the gradient of ``embeddings`` on to the parameters."""
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
