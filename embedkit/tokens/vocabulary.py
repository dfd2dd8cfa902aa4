"""What masking and packing know of a tokenizer: its ids, and which of them are special."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from embedkit.errors import UserError


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Shapes: ``special`` and ``ordinary`` are sorted ids, which together are all there are."""

    size: int
    """The largest id, and one."""
    mask: int
    special: NDArray[np.int64]
    ordinary: NDArray[np.int64]
    prefix: NDArray[np.int64]
    """What stands in front of every sequence, as [CLS]."""
    suffix: NDArray[np.int64]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Self:
        """Ask ``tokenizer``.

        Raises:
            UserError: it has no mask token.
        """
        if tokenizer.mask_token_id is None:
            raise UserError(
                f"{tokenizer.name_or_path}: the tokenizer has no mask token, without which nothing "
                'can be masked: add one with add_special_tokens({"mask_token": "[MASK]"}) and save '
                "it, or choose another tokenizer"
            )
        ids = np.array(sorted(set(tokenizer.get_vocab().values())), dtype=np.int64)
        special = np.array(sorted(set(tokenizer.all_special_ids)), dtype=np.int64)
        prefix, suffix = _frame(tokenizer)
        return cls(
            size=int(ids[-1]) + 1,
            mask=int(tokenizer.mask_token_id),
            special=special,
            ordinary=np.setdiff1d(ids, special),
            prefix=prefix,
            suffix=suffix,
        )

    @property
    def framing(self) -> int:
        """Special tokens that every sequence has."""
        return len(self.prefix) + len(self.suffix)


def backend_of(tokenizer: PreTrainedTokenizerBase) -> Any:
    """The tokenizers library's own object, which neither truncates nor pads.

    Raises:
        UserError: the tokenizer is written in Python.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UserError(
            f"{tokenizer.name_or_path}: has no tokenizer.json, and a tokenizer in Python is too "
            "slow for pretraining: convert it, or choose another"
        )
    backend.no_truncation()
    backend.no_padding()
    return backend


def _frame(tokenizer: PreTrainedTokenizerBase) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The ids that the tokenizer puts before and after those of a text."""
    backend = backend_of(tokenizer)
    bare = backend.encode("a", add_special_tokens=False).ids
    whole = backend.encode("a", add_special_tokens=True).ids
    around = len(whole) - len(bare)
    start = next(n for n in range(around + 1) if whole[n : n + len(bare)] == bare)
    ids = np.array(whole, dtype=np.int64)
    return ids[:start], ids[start + len(bare) :]
