"""Texts to token ids: the one place where a prompt meets a text and a text meets its limit."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from embedkit.storage.hashing import sha256_of_json
from embedkit.tokens.batch import TokenBatch


class Tokenize:
    """Puts a prompt in front of texts and cuts them at a limit, special tokens included.

    Whatever truncation and padding the tokenizer's own file carries is switched off.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        if backend is not None:
            backend.no_truncation()
            backend.no_padding()
        self._tokenizer = tokenizer

    def __call__(self, texts: Sequence[str], prompt: str, limit: int) -> TokenBatch:
        ids = self._tokenizer(
            [prompt + text for text in texts],
            truncation=True,
            max_length=limit,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )["input_ids"]
        prompt_length = self._prompt_length(prompt)
        return TokenBatch.from_lists(ids, [min(prompt_length, len(each)) for each in ids])

    def lengths(self, texts: Sequence[str], prompt: str) -> list[int]:
        """How many tokens whole texts have behind a prompt, special ones included."""
        whole = [prompt + text for text in texts]
        backend: Any = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is not None:
            # Whoever cut texts last has left a limit behind.
            backend.no_truncation()
            # On all cores, and without the offsets that transformers asks for.
            return [len(each) for each in backend.encode_batch_fast(whole)]
        ids = self._tokenizer(whole, verbose=False)["input_ids"] if whole else []
        return [len(each) for each in ids]

    def _prompt_length(self, prompt: str) -> int:
        """Tokens in front of the text, an opening special token included; 0 without a prompt.

        Counted on the prompt alone, as sentence-transformers does, which an exported model is read
        by. Where a vocabulary begins its words with their space, a prompt's last space is a token
        here, and in front of a text part of the text's first: pooling without the prompt then
        leaves that one out, there as here.
        """
        if not prompt:
            return 0
        ids = self._tokenizer(prompt, verbose=False)["input_ids"]
        closing = ids[-1] in set(self._tokenizer.all_special_ids)
        return len(ids) - int(closing)


def identity_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of all that decides which ids a text gets, and which of them are special."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    rules = (
        _digest_of_rules(backend.to_str())
        if backend is not None
        # One in Python shows its words alone.
        else sha256_of_json({"kind": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()})
    )
    parts: list[Any] = [rules, sorted(set(tokenizer.all_special_ids))]
    # Named where it is unusual, so that most identities are what they were before it was.
    if tokenizer.truncation_side != "right":
        parts.append(tokenizer.truncation_side)
    return sha256_of_json(parts)


@lru_cache(maxsize=8)
def _digest_of_rules(written: str) -> str:
    """Kept, since sorting a vocabulary takes ten times as long as writing it down."""
    # Every call sets these two anew.
    return sha256_of_json({**json.loads(written), "truncation": None, "padding": None})
