"""Encoding shared out among the ranks of torchrun, while rank 0 alone runs mteb."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from embedkit import distributed
from embedkit.evaluation.encoding.encoders import estimated_tokens
from embedkit.models.contextual.context import Context
from embedkit.models.embedding_model import EmbeddingModel

ResultT = TypeVar("ResultT")


class EncodingFailedError(RuntimeError):
    """A rank could not encode its share, and the others do not have it."""


class DistributedEncoder:
    """An encoder whose texts are encoded on all ranks, each its share of the estimated tokens.

    Rank 0 works with it inside ``run_on_main``; the other ranks are in the same call, where they
    encode what rank 0 gives them::

        encoder = DistributedEncoder(embedder)
        summary = encoder.run_on_main(lambda ranks: evaluate(ranks, tasks, output))

    Elsewhere each rank encodes what it is given by itself.
    """

    def __init__(self, model: EmbeddingModel) -> None:
        self._model, self._leading = model, False
        self.name, self.prompts = model.name, model.prompts
        self.default_prompt_name = model.default_prompt_name

    @property
    def identity(self) -> str:
        return self._model.identity

    def run_on_main(self, work: Callable[["DistributedEncoder"], ResultT]) -> ResultT:
        """What ``work`` gives on rank 0, on every rank; a mistake found there is raised on all."""
        if distributed.world_size() == 1:
            return work(self)
        if not distributed.is_main():
            while (request := distributed.on_main(_nothing)) is not None:
                with suppress(EncodingFailedError):  # Rank 0 decides what becomes of it.
                    self._share(*request)
        return distributed.on_main(lambda: self._led(work))

    def encode(
        self,
        texts: str | Sequence[str],
        *,
        prompt: str = "",
        show_progress: bool = False,
        context: Context | None = None,
    ) -> NDArray[np.float32]:
        """Embed texts; a contextual model does so in ``context``.

        Shapes: a list of n texts -> ``(n, D)``, one text -> ``(D,)``.
        """
        if isinstance(texts, str):
            return self.encode([texts], prompt=prompt, context=context)[0]
        if not self._leading:
            return self._here(texts, prompt, context)
        request = (list(texts), prompt, context)
        distributed.on_main(lambda: request)
        return self._share(*request)

    def _led(self, work: Callable[["DistributedEncoder"], ResultT]) -> ResultT:
        self._leading = True
        try:
            return work(self)
        finally:
            self._leading = False
            distributed.on_main(_nothing)

    def _share(self, texts: list[str], prompt: str, context: Context | None) -> NDArray[np.float32]:
        """Encode this rank's share of texts, and collect those of all."""
        tokens = estimated_tokens(texts, self._model.max_tokens)
        tokens += self._model.positions_before_text
        shares = shares_by_tokens(tokens, distributed.world_size())
        mine = [texts[row] for row in shares[distributed.rank()].tolist()]
        device, error = self._model.device, None
        try:
            vectors = torch.from_numpy(self._here(mine, prompt, context)).to(device)
        except Exception as failure:  # The other ranks wait for this one.
            error = failure
        if distributed.any_rank(error is not None, device):
            raise EncodingFailedError(str(error or "on another rank")) from error
        gathered = distributed.gather(vectors)[0].cpu().numpy()
        return np.asarray(gathered[np.argsort(np.concatenate(shares))])

    def _here(
        self, texts: Sequence[str], prompt: str, context: Context | None
    ) -> NDArray[np.float32]:
        return np.asarray(self._model.encode(texts, prompt=prompt, context=context))


def shares_by_tokens(tokens: NDArray[np.int64], count: int) -> list[NDArray[np.int64]]:
    """Rows for each of ``count`` ranks: neighbours in length, and about as many tokens for each.

    Shapes: ``(texts,)`` to ``count`` arrays that together hold every row once.
    """
    order = np.argsort(-tokens, kind="stable")
    # A text goes where its middle falls.
    middles = np.cumsum(tokens[order]) - tokens[order] / 2
    ends = np.searchsorted(middles, tokens.sum() * np.arange(1, count) / count, "right")
    return np.split(order, ends)


def _nothing() -> Any:
    return None
