"""Tokenizes texts once: pretraining reads their token ids instead of them."""

import json
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from rich.progress import SpinnerColumn, TimeElapsedColumn
from transformers import PreTrainedTokenizerBase

from embedkit.data.concepts import splits
from embedkit.data.sources.open_source import OpenedSource
from embedkit.data.sources.streams import blocks_of
from embedkit.data.text.texts import Texts
from embedkit.data.text.token_store import StoreWriter, TokenStore
from embedkit.distributed.progress import progress_bar
from embedkit.storage import cache
from embedkit.storage.hashing import sha256_of_json
from embedkit.tokens.vocabulary import backend_of

_CHARACTERS = 2**20
"""Tokenized at a time, since the tokenizer's results take a hundred times the memory of ids."""
FORMAT = 1
"""Part of every key: raise it when rows become other documents, or ids are written otherwise."""


@dataclass(frozen=True, slots=True)
class Tokenized:
    """The token ids of one source."""

    name: str
    train: TokenStore
    held_out: TokenStore | None
    fingerprint: str
    """A hash that changes with anything that changes training: the ids and the tokenizer."""
    license: str = ""


def prepare(texts: Texts, tokenizer: PreTrainedTokenizerBase) -> Tokenized:
    """Open the token ids of ``texts``; the first time, write them to the cache.

    A run that is killed while it writes leaves its work to the next. Of several processes one
    writes and the others wait.

    Raises:
        DataError: the source is missing, is not what the manifest pins, or has a bad row.
        UserError: the tokenizer is written in Python.
    """
    opened = texts.open()
    identity = _identity(tokenizer)
    manifest = texts.manifest
    making = manifest.model_dump(
        include={"columns", "filter", "drop_empty", "deduplicate", "held_out"}
    )
    key = opened.key(manifest.source, FORMAT, making=making, tokenizer=identity)
    build = partial(_tokenize, texts=texts, opened=opened, tokenizer=tokenizer)
    folder = cache.built("tokens", key, build, resumable=True)
    facts = json.loads((folder / "source.json").read_text())
    opened.expect(texts.name, "documents", facts["documents"], manifest.rows)
    stores = {split: TokenStore(folder, split) for split in splits(manifest.held_out)}
    fingerprint = sha256_of_json([*(store.content for store in stores.values()), identity])
    held_out = stores.get("held_out")
    return Tokenized(texts.name, stores["train"], held_out, fingerprint, manifest.license)


def _tokenize(
    folder: Path, texts: Texts, opened: OpenedSource, tokenizer: PreTrainedTokenizerBase
) -> None:
    backend = backend_of(tokenizer)
    dtype = np.uint16 if max(tokenizer.get_vocab().values()) < 2**16 else np.uint32
    writer = StoreWriter(folder, splits(texts.manifest.held_out), np.dtype(dtype))
    rest = islice(texts.documents(opened), writer.read, None)
    read, tokens = writer.read, 0
    columns = (SpinnerColumn(), "tokenizing {task.description}", TimeElapsedColumn())
    with progress_bar(*columns) as progress:
        task = progress.add_task("")
        for block in blocks_of(rest, lambda document: len(document.text), _CHARACTERS):
            written = [document.text for document in block]
            encoded = backend.encode_batch_fast(written, add_special_tokens=False)
            for document, encoding in zip(block, encoded, strict=True):
                writer.add("held_out" if document.held_out else "train", encoding.ids)
                tokens += len(encoding.ids)
            read += len(block)
            description = f"{texts.name}: {read:,} documents, {tokens / 1e6:,.1f} M tokens"
            progress.update(task, description=description)
    writer.finish()
    (folder / "source.json").write_text(json.dumps({"name": texts.name, "documents": read}))


def _identity(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of all that decides which ids a text gets, and which of them are special.

    It covers truncation, since a store has a text as the tokenizer itself would truncate it.
    """
    return sha256_of_json([backend_of(tokenizer).to_str(), sorted(set(tokenizer.all_special_ids))])
