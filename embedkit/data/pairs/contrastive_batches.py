"""This rank's slice of a batch, tokenized: what the contrastive objective reads."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from embedkit import distributed, rng
from embedkit.data.batch_sampler import BatchSampler
from embedkit.data.pairs.records import Record, Records
from embedkit.data.vector_store import VectorStore
from embedkit.recipe import Data
from embedkit.tokens.batch import TokenBatch
from embedkit.tokens.tokenizer import Tokenize


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of a batch as the model sees them, without special tokens.

    The positive of query ``i`` is document ``i``; hard negatives follow, and ``owners`` says whose.
    """

    source: str
    queries: list[str]
    documents: list[str]
    owners: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class ContrastiveBatch:
    """This rank's queries and documents, and what decides which are negatives of which.

    Shapes: q queries, n documents. Documents ``0..q-1`` are the positives, in order; the rest are
    hard negatives. ``owners`` ``(n,)`` is the query that each document came with; ``query_hashes``
    ``(q,)`` and ``document_hashes`` ``(n,)`` name texts without their prompts; ``labels`` ``(n,)``
    names each positive's label and is 0 where there is none; ``surrogate`` ``(q, 2, S)`` holds the
    stored vectors of each query and its positive, and ``scores`` ``(q,)`` says how well the two
    match, where the objective goes by them.
    """

    source: str
    size: int
    """Queries over all ranks."""
    in_batch_negatives: bool
    queries: TokenBatch
    documents: TokenBatch
    owners: Tensor
    query_hashes: Tensor
    document_hashes: Tensor
    labels: Tensor
    surrogate: Tensor | None = None
    scores: Tensor | None = None

    def to(self, device: torch.device) -> Self:
        moved = {
            name: getattr(self, name).to(device)
            for name in (
                "queries", "documents", "owners", "query_hashes", "document_hashes", "labels"
            )
        }  # fmt: skip
        for name in ("surrogate", "scores"):
            if (rows := getattr(self, name)) is not None:
                moved[name] = rows.to(device)
        return replace(self, **moved)


class Batches(Dataset[ContrastiveBatch]):
    """Batch number -> what this rank reads of it, tokenized.

    A rank reads its slice of the sampler's batch of this number. With ``batches_per_rank`` every
    rank reads a whole batch: number ``n`` of W ranks stands for the sampler's ``n * W`` to
    ``n * W + W - 1``. ``vectors`` are the surrogate's, of every source in the order of ``records``,
    if batches are to have them.
    """

    def __init__(
        self,
        sampler: BatchSampler,
        records: Sequence[Records],
        tokenizer: PreTrainedTokenizerBase,
        data: Data,
        *,
        seed: int,
        batches_per_rank: bool = False,
        vectors: Sequence[VectorStore] = (),
    ) -> None:
        self._sampler, self._records, self._data = sampler, records, data
        self._batches_per_rank, self._vectors = batches_per_rank, vectors
        self._tokenize, self._seed = Tokenize(tokenizer), seed
        # Workers may be spawned, and know nothing of ranks.
        self._rank, self._world_size = distributed.rank(), distributed.world_size()

    def __len__(self) -> int:
        return len(self._sampler) // (self._world_size if self._batches_per_rank else 1)

    def __getitem__(self, batch: int) -> ContrastiveBatch:
        batch, source, numbers, size = self._share(batch)
        records = self._records[source]
        rows = records.take(numbers)
        negatives = [
            self._negatives(row, int(number), batch, records.negatives_per_query)
            for row, number in zip(rows, numbers, strict=True)
        ]
        assembled = self._assemble(records, rows, negatives, size=size)
        if not self._vectors:
            return assembled
        stored = self._vectors[source]
        sides = np.stack([side[numbers] for side in (stored.queries, stored.documents)], 1)
        return replace(assembled, surrogate=torch.from_numpy(sides))

    def _share(self, number: int) -> tuple[int, int, NDArray[np.int64], int]:
        """A batch of the sampler, its source, this rank's rows of it, and how many all read."""
        if not self._batches_per_rank:
            draw = self._sampler[number]
            part = distributed.share_of(len(draw.rows), self._rank, self._world_size)
            return number, draw.source, draw.rows[part], len(draw.rows)
        first = number * self._world_size
        draws = [self._sampler[first + rank] for rank in range(self._world_size)]
        own = draws[self._rank]
        # A source's batches may differ in size by its last one.
        return first + self._rank, own.source, own.rows, sum(len(each.rows) for each in draws)

    def texts(self, batch: int) -> Texts:
        """The texts of a whole batch of the sampler, with their prompts."""
        draw = self._sampler[batch]
        records = self._records[draw.source]
        rows = records.take(draw.rows)
        documents = [row.positive for row in rows]
        owners = list(range(len(rows)))
        for owner, (row, number) in enumerate(zip(rows, draw.rows, strict=True)):
            drawn = self._negatives(row, int(number), batch, records.negatives_per_query)
            documents += drawn
            owners += [owner] * len(drawn)
        prompts = records.prompts
        return Texts(
            records.name,
            [prompts.query + row.query for row in rows],
            [prompts.document + text for text in documents],
            owners,
        )

    def _negatives(self, record: Record, row: int, batch: int, count: int) -> list[str]:
        """``count`` of the record's hard negatives, or all where there are fewer."""
        available = len(record.negatives)
        if available <= count:
            return list(record.negatives)
        places = rng.permuted(
            np.arange(count), available, rng.fold_in(self._seed, "negatives", batch, row)
        )
        return [record.negatives[place] for place in places]

    def _assemble(
        self, records: Records, rows: list[Record], negatives: list[list[str]], *, size: int
    ) -> ContrastiveBatch:
        data, prompts = self._data, records.prompts
        queries = [row.query for row in rows]
        documents = [row.positive for row in rows] + [text for own in negatives for text in own]
        own = torch.tensor([len(each) for each in negatives], dtype=torch.int64)
        owners = torch.cat(
            [torch.arange(len(rows)), torch.arange(len(rows)).repeat_interleave(own)]
        )
        # A hard negative is of unknown label: only texts that were given one can share it.
        labels = [row.label for row in rows] + [None] * (len(documents) - len(rows))
        query_limit = records.description.max_query_tokens or data.max_query_tokens
        document_limit = records.description.max_document_tokens or data.max_document_tokens
        return ContrastiveBatch(
            source=records.name,
            size=size,
            in_batch_negatives=records.description.in_batch_negatives,
            queries=self._tokenize(queries, prompts.query, query_limit),
            documents=self._tokenize(documents, prompts.document, document_limit),
            owners=owners,
            query_hashes=_hashes(queries),
            document_hashes=_hashes(documents),
            labels=_hashes(labels),
            scores=torch.tensor([row.score for row in rows]) if records.has_scores else None,
        )


def _hashes(texts: Sequence[str | None]) -> Tensor:
    """A 63-bit name for each text, above 0; 0 for ``None``."""
    return torch.tensor([0 if text is None else _hash(text) for text in texts], dtype=torch.int64)


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.strip().encode(), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "little") % (2**63 - 2)
