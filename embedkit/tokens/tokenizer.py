"""Tokenization: the one module that prepends prompts and truncates texts to a length limit."""

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import normalizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from embedkit.errors import UserError
from embedkit.storage.hashing import sha256_of_json
from embedkit.tokens.batch import TokenBatch

TEXT_TOKENS = 8
"""Number of tokens that a prompt has to leave to a text, without which texts look alike."""


class Tokenize:
    """Tokenizer that prepends a prompt and truncates at a limit, special tokens included.

    Truncation and padding that the tokenizer's file sets are switched off.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        without_truncation(tokenizer)
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
        return TokenBatch.from_lists(ids, [min(prompt_length, len(sequence)) for sequence in ids])

    def lengths(self, texts: Sequence[str], prompt: str) -> list[int]:
        """Return each text's number of tokens before truncation, with prompt and special tokens."""
        whole = [prompt + text for text in texts]
        # An earlier call with truncation leaves its limit in the backend.
        backend = without_truncation(self._tokenizer)
        if backend is not None:
            # This uses all cores, and skips the offsets that transformers asks for.
            return [len(encoding) for encoding in backend.encode_batch_fast(whole)]
        ids = self._tokenizer(whole, verbose=False)["input_ids"] if whole else []
        return [len(sequence) for sequence in ids]

    def check_room(self, prompt: str, limit: int, setting: str) -> None:
        """Verify that a prompt leaves room for a text.

        Args:
            prompt: prefix of the texts; without one, any limit will do.
            limit: length to which texts are truncated, prompt and special tokens included.
            setting: name of the limit.

        Raises:
            UserError: fewer than ``TEXT_TOKENS`` tokens are left.
        """
        if not prompt:
            return
        (taken,) = self.lengths([""], prompt)
        if (left := limit - taken) < TEXT_TOKENS:
            raise UserError(
                f"{setting} = {limit}: the prompt {prompt!r} and special tokens take {taken} of "
                f"them, which leaves {max(left, 0)} to a text; set {taken + TEXT_TOKENS} or more, "
                "or shorten the prompt"
            )

    def _prompt_length(self, prompt: str) -> int:
        """Return the number of tokens of a prompt with its opening special token; 0 without one.

        The prompt is tokenized alone, as in sentence-transformers. In vocabularies whose words
        begin with a space, the prompt's last space is a token here, but joins the text's first
        token in front of a text: both libraries then pool without that token.
        """
        if not prompt:
            return 0
        ids = self._tokenizer(prompt, verbose=False)["input_ids"]
        return len(ids) - int(ids[-1] in self._tokenizer.all_special_ids)


def without_truncation(tokenizer: PreTrainedTokenizerBase) -> Any:
    """Switch off truncation and padding; return the ``tokenizers.Tokenizer``, if there is one."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    return backend


def lowercased(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return a tokenizer that lowercases first, as sentence-transformers' do_lower_case does."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        # Tokenizers in Python that can lowercase have a switch for it.
        vars(tokenizer)["do_lower_case"] = True
        return tokenizer
    rules = [backend.normalizer] if backend.normalizer else []
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *rules])
    # A tokenizer of a model's own class would drop the new rule when it is saved and loaded again.
    generic: PreTrainedTokenizerBase = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=tokenizer.model_max_length,
        model_input_names=tokenizer.model_input_names,
        truncation_side=tokenizer.truncation_side,
        **tokenizer.special_tokens_map,
    )
    return generic


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tokenizer's files, which depend neither on its use so far nor on how it was loaded.

    They hold no limit at which texts were last truncated, and not whether the hub was in reach.
    """
    without_truncation(tokenizer)
    for name in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(name, None)
    tokenizer.save_pretrained(folder)


def identity_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of all that decides the token ids of a text, and which ids are special."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        rules = _digest_of_rules(backend.to_str())
    else:
        # A tokenizer in Python exposes its vocabulary, but not its rules.
        kind = type(tokenizer).__name__
        rules = sha256_of_json({"kind": kind, "vocabulary": tokenizer.get_vocab()})
    parts: list[Any] = [rules, sorted(set(tokenizer.all_special_ids))]
    # Only an unusual side is added, so that most hashes equal those of earlier versions.
    if tokenizer.truncation_side != "right":
        parts.append(tokenizer.truncation_side)
    return sha256_of_json(parts)


@lru_cache(maxsize=8)
def _digest_of_rules(written: str) -> str:
    """Return a hash of a tokenizer.json without truncation and padding, which every call sets.

    It is cached, since sorting a vocabulary takes ten times as long as serializing it.
    """
    return sha256_of_json({**json.loads(written), "truncation": None, "padding": None})
