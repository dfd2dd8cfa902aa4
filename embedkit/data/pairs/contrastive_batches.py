"""Builds this rank's slice of a batch, tokenized, which the contrastive objective reads."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from embedkit import distributed, rng
from embedkit.data.batch_sampler import BatchRows, BatchSampler
from embedkit.data.pairs.known_answers import text_hash
from embedkit.data.pairs.lengths import limits_of
from embedkit.data.pairs.records import Record, Records
from embedkit.data.vector_store import VectorStore
from embedkit.recipe import Data
from embedkit.tokens.batch import TokenBatch
from embedkit.tokens.tokenizer import Tokenize


@dataclass(frozen=True, slots=True)
class BatchTexts:
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
    names each positive's label and is 0 where there is none; ``known_answers`` ``(k, 2)`` holds the
    hashes of queries and of documents that answer them in other rows of the source, where the
    objective goes by them; ``surrogate`` ``(q, 2, S)`` holds the
    stored vectors of each query and its positive, and ``scores`` ``(q,)`` says how well the two
    match, where the objective goes by them.
    """

    source: str
    size: int
    """Number of queries over all ranks."""
    in_batch_negatives: bool
    queries: TokenBatch
    documents: TokenBatch
    owners: Tensor
    query_hashes: Tensor
    document_hashes: Tensor
    labels: Tensor
    known_answers: Tensor | None = None
    surrogate: Tensor | None = None
    scores: Tensor | None = None
    teacher: Tensor | None = None
    """A teacher's score of each document for the query that it came with, ``(n,)``."""

    def to(self, device: torch.device) -> Self:
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        tensors = (Tensor, TokenBatch)
        moved: dict[str, Any] = {n: v.to(device) for n, v in values if isinstance(v, tensors)}
        return replace(self, **moved)


class Batches(Dataset[ContrastiveBatch]):
    """Maps a batch's number to what this rank reads of it, tokenized.

    A rank reads its slice of the sampler's batch of this number. With ``batches_per_rank`` every
    rank reads a whole batch: number ``n`` of W ranks stands for the sampler's ``n * W`` to
    ``n * W + W - 1``. ``vectors`` are the surrogate's of every source, in the order of ``records``,
    if batches are to have them. ``known_answers`` says whether they have answers of other rows.
    """

    def __init__(
        self,
        sampler: BatchSampler | Sequence[BatchRows],
        records: Sequence[Records],
        tokenizer: PreTrainedTokenizerBase,
        data: Data,
        *,
        seed: int,
        batches_per_rank: bool = False,
        vectors: Sequence[VectorStore] = (),
        known_answers: bool = False,
    ) -> None:
        self._sampler, self._records, self._data = sampler, records, data
        self._batches_per_rank, self._vectors = batches_per_rank, vectors
        # They are opened here and not in each worker, since the first time all rows are read.
        self._known = [source.known_answers for source in records] if known_answers else []
        self._tokenize, self._seed = Tokenize(tokenizer), seed
        # Kept here, since spawned workers are no ranks.
        self._rank, self._world_size = distributed.rank(), distributed.world_size()

    def __len__(self) -> int:
        return len(self._sampler) // (self._world_size if self._batches_per_rank else 1)

    def __getitem__(self, number: int) -> ContrastiveBatch:
        batch, source, numbers, size = self._share(number)
        records = self._records[source]
        rows, documents, owners, teacher = self._draw(records, numbers, batch)
        queries = [row.query for row in rows]
        # A hard negative is of unknown label: only texts that were given one can share it.
        labels = [row.label for row in rows] + [None] * (len(documents) - len(rows))
        query_hashes, document_hashes = _hashes(queries), _hashes(documents)
        known = surrogate = None
        if self._known:
            known = torch.from_numpy(self._known[source].of(query_hashes.numpy()))
            if self._world_size == 1:
                # Of a query's answers, which may be thousands, few are in the batch. With more
                # ranks they may be among the documents of another.
                known = known[torch.isin(known[:, 1], document_hashes)]
        if self._vectors:
            stored = self._vectors[source]
            sides = np.stack((stored.queries[numbers], stored.documents[numbers]), axis=1)
            surrogate = torch.from_numpy(sides)
        description, prompts = records.description, records.prompts
        query_limit, document_limit = limits_of(records, self._data)
        return ContrastiveBatch(
            source=records.name,
            size=size,
            in_batch_negatives=description.in_batch_negatives,
            queries=self._tokenize(queries, prompts.query, query_limit),
            documents=self._tokenize(documents, prompts.document, document_limit),
            owners=torch.tensor(owners, dtype=torch.int64),
            query_hashes=query_hashes,
            document_hashes=document_hashes,
            labels=_hashes(labels),
            known_answers=known,
            surrogate=surrogate,
            scores=torch.tensor([row.score for row in rows]) if records.has_scores else None,
            teacher=torch.tensor(teacher) if records.has_teacher else None,
        )

    def texts(self, batch: int) -> BatchTexts:
        """Return the texts of a whole batch of the sampler, with their prompts."""
        sampled = self._sampler[batch]
        records = self._records[sampled.source]
        rows, documents, owners, _ = self._draw(records, sampled.rows, batch)
        queries = [records.prompts.query + row.query for row in rows]
        documents = [records.prompts.document + text for text in documents]
        return BatchTexts(records.name, queries, documents, owners)

    def _share(self, number: int) -> tuple[int, int, NDArray[np.int64], int]:
        """Return the sampler's batch, its source, this rank's rows and how many all ranks read."""
        if not self._batches_per_rank:
            batch = self._sampler[number]
            share = distributed.share_of(len(batch.rows), self._rank, self._world_size)
            return number, batch.source, batch.rows[share], len(batch.rows)
        first = number * self._world_size
        batches = [self._sampler[first + rank] for rank in range(self._world_size)]
        batch = batches[self._rank]
        # The last batch of a source may be smaller than its others.
        size = sum(len(other.rows) for other in batches)
        return first + self._rank, batch.source, batch.rows, size

    def _draw(
        self, records: Records, numbers: NDArray[np.int64], batch: int
    ) -> tuple[list[Record], list[str], list[int], list[float]]:
        """Return the rows of these numbers, all their documents, the row of each document, and the
        teacher's score of each, if there are any.
        """
        rows, count = records.take(numbers), records.negatives_per_query
        documents = [row.positive for row in rows]
        owners = list(range(len(rows)))
        teacher = [row.scores[0] for row in rows if row.scores]
        for owner, (row, number) in enumerate(zip(rows, numbers, strict=True)):
            negatives, scores = row.negatives, (row.scores or ())[1:]
            if len(negatives) > count:
                key = rng.fold_in(self._seed, "negatives", batch, int(number))
                drawn = rng.permuted(np.arange(count), len(negatives), key)
                negatives = tuple(negatives[n] for n in drawn)
                scores = tuple(scores[n] for n in drawn) if scores else ()
            documents += negatives
            owners += [owner] * len(negatives)
            teacher += scores
        return rows, documents, owners, teacher


def _hashes(texts: Sequence[str | None]) -> Tensor:
    """Return the hash of each text, and 0 for ``None``."""
    hashes = [0 if text is None else text_hash(text) for text in texts]
    return torch.tensor(hashes, dtype=torch.int64)
