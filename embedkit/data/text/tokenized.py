"""Tokenizes texts once: what pretraining reads instead of them."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from rich.progress import SpinnerColumn, TimeElapsedColumn
from transformers import PreTrainedTokenizerBase

from embedkit.data.sources import open_source
from embedkit.data.sources.open_source import OpenedSource
from embedkit.data.text.documents import Document, is_held_out
from embedkit.data.text.texts import Texts
from embedkit.data.text.token_store import Split, StoreWriter, TokenStore
from embedkit.distributed.progress import progress_bar
from embedkit.storage import cache
from embedkit.storage.hashing import sha256_of_json
from embedkit.tokens.vocabulary import backend_of

_CHARACTERS = 2**20
"""Tokenized at a time: what the tokenizer returns takes a hundred times the memory of its ids."""
FORMAT = 1
"""Part of every key: raise it when rows become other documents, or ids are written otherwise."""


@dataclass(frozen=True, slots=True)
class Tokenized:
    """The token ids of one source."""

    name: str
    train: TokenStore
    held_out: TokenStore | None
    fingerprint: str
    """Changes with anything that changes training: the ids, and what the tokenizer is."""
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
    build = partial(_tokenize, texts=texts, opened=opened, tokenizer=tokenizer)
    folder = cache.built("tokens", _key(texts, opened, tokenizer), build, resumable=True)
    facts = json.loads((folder / "source.json").read_text())
    texts.expect(facts["documents"], opened)
    stores = {split: TokenStore(folder, split) for split in _splits(texts)}
    contents = [store.content for store in stores.values()]
    return Tokenized(
        texts.name,
        stores["train"],
        stores.get("held_out"),
        sha256_of_json([*contents, _identity(tokenizer)]),
        texts.description.license,
    )


def _tokenize(
    folder: Path, texts: Texts, opened: OpenedSource, tokenizer: PreTrainedTokenizerBase
) -> None:
    backend = backend_of(tokenizer)
    dtype = np.uint16 if max(tokenizer.get_vocab().values()) < 2**16 else np.uint32
    writer = StoreWriter(folder, _splits(texts), np.dtype(dtype))
    rest = islice(texts.documents(opened), writer.read, None)
    read, tokens = writer.read, 0
    columns = (SpinnerColumn(), "tokenizing {task.description}", TimeElapsedColumn())
    with progress_bar(*columns) as progress:
        task = progress.add_task("")
        for batch in _batches(rest):
            encoded = backend.encode_batch_fast(
                [document.text for document in batch], add_special_tokens=False
            )
            for document, encoding in zip(batch, encoded, strict=True):
                ids = encoding.ids
                tokens += len(ids)
                split: Split = "held_out" if is_held_out(document, texts.description) else "train"
                writer.add(split, ids)
            read += len(batch)
            said = f"{texts.name}: {read:,} documents, {tokens / 1e6:,.1f} M tokens"
            progress.update(task, description=said)
    writer.finish()
    (folder / "source.json").write_text(json.dumps({"name": texts.name, "documents": read}))


def _batches(found: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in found:
        batch.append(document)
        size += len(document.text)
        if size >= _CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _splits(texts: Texts) -> tuple[Split, ...]:
    return ("train", "held_out") if texts.description.held_out else ("train",)


def _key(texts: Texts, opened: OpenedSource, tokenizer: PreTrainedTokenizerBase) -> str:
    making = texts.description.model_dump(
        include={"columns", "filter", "drop_empty", "deduplicate", "held_out"}
    )
    parts = {
        "making": making,
        "reader": texts.source.model_dump(mode="json").get("reader"),
        "source": opened.identity,
        "formats": [FORMAT, open_source.FORMAT],
        "tokenizer": _identity(tokenizer),
    }
    return sha256_of_json(parts)[:32]


def _identity(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of all that decides which ids a text gets, and which of them are special.

    Truncation too: a store has a text as the tokenizer itself would cut it.
    """
    return sha256_of_json([backend_of(tokenizer).to_str(), sorted(set(tokenizer.all_special_ids))])
