"""Token ids that masking and packing need from a tokenizer."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from embedkit.errors import UserError
from embedkit.tokens.tokenizer import without_truncation


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Token ids of a tokenizer; ``special`` and ``ordinary``, both sorted, are all of them."""

    size: int
    """Largest token id + 1."""
    mask: int
    """Token id of [MASK]."""
    special: NDArray[np.int64]
    ordinary: NDArray[np.int64]
    prefix: NDArray[np.int64]
    """Special token ids that begin every sequence, such as [CLS]."""
    suffix: NDArray[np.int64]
    """Special token ids that end every sequence, such as [SEP]."""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Self:
        """Return the vocabulary of ``tokenizer``.

        Raises:
            UserError: the tokenizer has no mask token, or is written in Python.
        """
        if tokenizer.mask_token_id is None:
            raise UserError(
                f"{tokenizer.name_or_path}: the tokenizer has no mask token, without which nothing "
                'can be masked: add one with add_special_tokens({"mask_token": "[MASK]"}) and save '
                "it, or choose another tokenizer"
            )
        ids = np.array(sorted(set(tokenizer.get_vocab().values())), dtype=np.int64)
        special = np.array(sorted(set(tokenizer.all_special_ids)), dtype=np.int64)
        backend = backend_of(tokenizer)
        bare = backend.encode("a", add_special_tokens=False).ids
        whole = backend.encode("a").ids
        starts = range(len(whole) - len(bare) + 1)
        start = next(first for first in starts if whole[first : first + len(bare)] == bare)
        return cls(
            size=int(ids[-1]) + 1,
            mask=int(tokenizer.mask_token_id),
            special=special,
            ordinary=np.setdiff1d(ids, special),
            prefix=np.array(whole[:start], dtype=np.int64),
            suffix=np.array(whole[start + len(bare) :], dtype=np.int64),
        )

    @property
    def framing(self) -> int:
        """Number of special tokens around every sequence."""
        return len(self.prefix) + len(self.suffix)


def backend_of(tokenizer: PreTrainedTokenizerBase) -> Any:
    """Return the tokenizer's backend (``tokenizers.Tokenizer``), with truncation and padding off.

    Raises:
        UserError: the tokenizer is written in Python and has no backend.
    """
    backend = without_truncation(tokenizer)
    if backend is None:
        raise UserError(
            f"{tokenizer.name_or_path}: has no tokenizer.json, and a tokenizer in Python is too "
            "slow for pretraining: convert it, or choose another"
        )
    return backend
