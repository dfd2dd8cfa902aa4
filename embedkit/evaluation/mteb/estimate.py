"""Counts the texts that an evaluation would encode, and measures how long that takes here."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mteb.abstasks.abstask import AbsTask
from numpy.typing import NDArray
from rich.table import Column, Table

from embedkit.errors import DataError, UserError
from embedkit.evaluation.encoding.vector_cache import keys_of
from embedkit.evaluation.mteb.instructions import NO_INSTRUCTIONS, Instructions
from embedkit.evaluation.mteb.mirror import with_local_data
from embedkit.evaluation.mteb.speed import pairs_per_second, prose, tokens_per_second
from embedkit.evaluation.mteb.task_prompts import resolve_prompts
from embedkit.evaluation.mteb.task_selection import leaves, searches_corpus
from embedkit.evaluation.mteb.text_statistics import Part, published, texts_of
from embedkit.evaluation.progress import progress_of, quiet_libraries
from embedkit.evaluation.tables import as_text
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.tokens.tokenizer import Tokenize

_SAMPLE = 128
"""Number of texts of each side of a task that are tokenized."""
_CHARACTERS = 4.2
"""Mean number of characters of a token of English text under WordPiece."""
_ONE_CORPUS = frozenset({"FEVER", "ClimateFEVER"})
"""Tasks that search one corpus, but for 25 documents. mteb publishes counts, which do not tell."""

_Sizes = Counter[tuple[Part, str]]
"""Numbers of texts by the part and the side of a task."""


@dataclass(frozen=True, slots=True)
class TaskEstimate:
    """Numbers of the texts that one task would encode."""

    name: str
    texts: int
    unique: int
    new: int
    """Number of unique texts that no earlier task has under the same prompt."""
    tokens: int
    """Number of tokens of the new texts with their prompts, as the model truncates them, estimated
    from a tokenized sample."""
    pairs: int
    """Number of pairs of a query and a document that a search of the whole corpus compares."""
    read: bool
    """Whether the texts were read; otherwise all numbers follow from counts that mteb publishes."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Numbers of the texts that tasks would encode with an empty cache, and the measured speed."""

    model: str
    tasks: Sequence[TaskEstimate]
    unknown: Mapping[str, str]
    """Reason why a task has no estimate, by its name."""
    tokens_per_second: float
    pairs_per_second: float
    context_documents: int | None = None
    """Number of documents that a contextual model reads before each task; they are not counted."""

    @property
    def seconds(self) -> float:
        """Seconds of encoding."""
        return sum(task.tokens for task in self.tasks) / self.tokens_per_second

    @property
    def search_seconds(self) -> float:
        return sum(task.pairs for task in self.tasks) / self.pairs_per_second

    def table(self) -> Table:
        title = f"{self.model}: to encode at {self.tokens_per_second:,.0f} tokens/s"
        counts = ("texts", "unique", "to encode", "tokens", "time")
        table = Table("task", *(Column(name, justify="right") for name in counts), title=title)
        for task in self.tasks:
            table.add_row(task.name + ("" if task.read else " *"), *self._cells([task]))
        table.add_section()
        table.add_row("all", *self._cells(self.tasks))
        return table

    def text(self) -> str:
        """Return the table, followed by what its numbers stand for."""
        source = f"tokens: from a sample of at most {_SAMPLE} texts a side; time: encoding alone"
        lines = [as_text(self.table(), width=120).rstrip(), source]
        if pairs := sum(task.pairs for task in self.tasks):
            took = _duration(self.search_seconds)
            lines.append(f"search: {pairs:,} pairs of a query and a document, {took}")
        if not all(task.read for task in self.tasks):
            lines.append("*: counts published by mteb, tokens from characters; nothing was read")
        if self.context_documents is not None:
            lines.append(f"not counted: a context of {self.context_documents} documents a task")
        lines += [f"unknown: {name}: {reason}" for name, reason in self.unknown.items()]
        return "\n".join(lines) + "\n"

    def _cells(self, tasks: Sequence[TaskEstimate]) -> list[str]:
        columns = ("texts", "unique", "new", "tokens")
        counts = [sum(getattr(task, column) for task in tasks) for column in columns]
        return [*(f"{count:,}" for count in counts), _duration(counts[-1] / self.tokens_per_second)]


def estimate(
    model: EmbeddingModel,
    tasks: Sequence[AbsTask],
    instructions: Instructions = NO_INSTRUCTIONS,
    data_dir: Path | None = None,
    *,
    context_documents: int | None = None,
) -> Estimate:
    """Count what tasks would encode, and measure how fast the model encodes it. Scores nothing.

    The texts of task folders and of a mirror are read. For tasks of the hub, the counts that mteb
    publishes are used, so that nothing is downloaded. ``tasks``, ``instructions`` and ``data_dir``
    are as in ``scoring.evaluate``; ``context_documents`` is the size of each context of a
    contextual model, for the record.
    """
    counter = _Counter(model)
    parts = [part for task in tasks for part in leaves(task)]
    estimates: list[TaskEstimate] = []
    unknown: dict[str, str] = {}
    with quiet_libraries(), progress_of(len(parts)) as progress:
        for part in parts:
            name = part.metadata.name
            progress.update(progress.task_ids[0], description=name)
            prompts = resolve_prompts(part, model, instructions).by_side
            try:
                local = with_local_data(part, data_dir)
                readable = local.data_loaded or local is not part
                count = counter.read if readable else counter.published
                estimates.append(count(local, prompts))
            except DataError as error:
                unknown[name] = str(error)
            progress.advance(progress.task_ids[0])
        if not counter.samples:
            reasons = [f"{name}: {reason}" for name, reason in unknown.items()]
            raise UserError("\n".join(["estimate: no task has texts to count", *reasons]))
        speeds = tokens_per_second(model, counter.samples), pairs_per_second(model)
    return Estimate(model.name, estimates, unknown, *speeds, context_documents)


class _Counter:
    """Counts the texts of one task after the other, and recalls those of earlier tasks."""

    def __init__(self, model: EmbeddingModel) -> None:
        self._model, self._tokenize = model, Tokenize(model.tokenizer)
        self._seen: dict[str, NDArray[np.uint64]] = defaultdict(lambda: np.empty(0, np.uint64))
        self._corpora: Counter[str] = Counter()
        """Documents of the corpus that several tasks search, by the prompt behind which the earlier
        ones read it."""
        self.samples: list[tuple[str, list[str]]] = []
        """Prompts, each with some texts that are read behind it."""

    def read(self, task: AbsTask, prompts: Mapping[str, str]) -> TaskEstimate:
        unique = new = tokens = 0
        sizes = _Sizes()
        hashes: dict[str, list[NDArray[np.uint64]]] = defaultdict(list)
        # The texts of the smallest hashes are a random choice of the distinct ones.
        samples: dict[str, dict[int, str]] = defaultdict(dict)
        for part, side, texts in texts_of(task):
            prompt, keys = prompts[side], keys_of(texts)[:, 0]
            sizes[part, side] += len(texts)
            hashes[prompt].append(np.unique(keys))
            known = samples[prompt] | dict(zip(keys.tolist(), texts, strict=True))
            samples[prompt] = dict(heapq.nsmallest(_SAMPLE, known.items()))
        for prompt, found in hashes.items():
            keys = np.unique(np.concatenate(found))
            unique += len(keys)
            keys = np.setdiff1d(keys, self._seen[prompt], assume_unique=True)
            self._seen[prompt] = np.concatenate([self._seen[prompt], keys])
            new += len(keys)
            sample = list(samples[prompt].values())
            tokens += round(len(keys) * self._tokens(prompt, sample) / len(sample))
            self.samples.append((prompt, sample))
        counts = sizes.total(), unique, new, tokens, _pairs(task, sizes)
        return TaskEstimate(task.metadata.name, *counts, read=True)

    def published(self, task: AbsTask, prompts: Mapping[str, str]) -> TaskEstimate:
        unique = new = tokens = 0
        sizes = _Sizes()
        for statistics in published(task):
            prompt, known = prompts[statistics.side], 0
            if task.metadata.name in _ONE_CORPUS and statistics.side == "document":
                known = min(self._corpora[prompt], statistics.unique)
                self._corpora[prompt] = max(self._corpora[prompt], statistics.unique)
            length = self._tokens(prompt, [""]) + statistics.characters / _CHARACTERS
            unique += statistics.unique
            new += statistics.unique - known
            sizes[statistics.part, statistics.side] += statistics.texts
            tokens += round((statistics.unique - known) * min(length, self._model.max_tokens))
            self.samples.append((prompt, [prose(round(statistics.characters))]))
        counts = sizes.total(), unique, new, tokens, _pairs(task, sizes)
        return TaskEstimate(task.metadata.name, *counts, read=False)

    def _tokens(self, prompt: str, texts: Sequence[str]) -> int:
        return self._tokenize(texts, prompt, self._model.max_tokens).num_tokens


def _pairs(task: AbsTask, sizes: _Sizes) -> int:
    """Return the number of pairs that the searches of a task compare; reranking compares few."""
    if not searches_corpus(task):
        return 0
    parts = {part for part, _ in sizes}
    return sum(sizes[part, "query"] * sizes[part, "document"] for part in parts)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{seconds / 3600:,.1f} h"
