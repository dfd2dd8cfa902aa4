"""What an evaluation would encode, and how long that takes here, before any of it is done."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import numpy as np
from mteb.abstasks.abstask import AbsTask
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from embedkit.errors import DataError
from embedkit.evaluation.encoding.vector_cache import keys_of
from embedkit.evaluation.mteb.mirror import with_local_data
from embedkit.evaluation.mteb.task_prompts import resolve_prompts
from embedkit.evaluation.mteb.task_selection import leaves
from embedkit.evaluation.mteb.text_statistics import published, texts_of
from embedkit.evaluation.progress import progress_of, quiet_libraries
from embedkit.evaluation.summary import as_text
from embedkit.models.contextual.model import Contextual
from embedkit.models.embedding_model import EmbeddingModel
from embedkit.tokens.tokenizer import Tokenize
from embedkit.training.flops import wait

_SAMPLE = 128
"""Texts of each side of a task that are tokenized."""
_BATCH = 64
_SECONDS = 5.0
"""Of encoding, to measure by: a part of the samples, or all of them again and again."""
_CHARACTERS = 4.2
"""Of a token, where there is no text to tokenize: the mean of English text under WordPiece."""


@dataclass(frozen=True, slots=True)
class TaskEstimate:
    """What one task would encode."""

    name: str
    texts: int
    unique: int
    new: int
    """Of the unique ones, those that no earlier task has under the same prompt."""
    tokens: int
    """Of the new ones, with prompts and cut to the model's length, from a tokenized sample."""
    read: bool
    """Whether the texts were read; else the counts are mteb's, and tokens from characters."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What all tasks would encode with an empty cache, and the speed that was measured."""

    model: str
    tasks: Sequence[TaskEstimate]
    unknown: Mapping[str, str]
    """Why there is no estimate of a task."""
    tokens_per_second: float
    context_documents: int | None = None
    """How many a contextual model reads before each task; not counted."""

    @property
    def seconds(self) -> float:
        return sum(task.tokens for task in self.tasks) / self.tokens_per_second

    def table(self) -> Table:
        table = Table(title=f"{self.model}: to encode at {self.tokens_per_second:,.0f} tokens/s")
        table.add_column("task")
        for column in ("texts", "unique", "to encode", "tokens", "time"):
            table.add_column(column, justify="right")
        for each in self.tasks:
            table.add_row(each.name + ("" if each.read else " *"), *self._cells([each]))
        table.add_section()
        table.add_row("all", *self._cells(self.tasks))
        return table

    def text(self) -> str:
        """The table, and what its numbers are."""
        lines = [as_text(self.table(), width=120).rstrip()]
        lines.append(
            f"tokens: from a sample of at most {_SAMPLE} texts a side; time: encoding alone"
        )
        if not all(task.read for task in self.tasks):
            lines.append("*: counts published by mteb, tokens from characters; nothing was read")
        if self.context_documents is not None:
            lines.append(f"not counted: a context of {self.context_documents} documents a task")
        lines += [f"unknown: {name}: {reason}" for name, reason in self.unknown.items()]
        return "\n".join(lines) + "\n"

    def _cells(self, tasks: Sequence[TaskEstimate]) -> list[str]:
        counts = [
            sum(getattr(task, key) for task in tasks)
            for key in ("texts", "unique", "new", "tokens")
        ]
        return [*(f"{count:,}" for count in counts), _duration(counts[-1] / self.tokens_per_second)]


def estimate(
    model: EmbeddingModel,
    tasks: Sequence[AbsTask],
    *,
    instructions: Mapping[str, str],
    data_dir: Path | None = None,
    context_documents: int | None = None,
    console: Console | None = None,
) -> Estimate:
    """Count what tasks would encode, and measure how fast the model encodes it. Scores nothing.

    The texts of task folders and of a mirror are read. Of the hub's tasks the counts that mteb
    publishes are taken, so that nothing is fetched.

    Args:
        model: The model, on its device.
        tasks: What ``select_tasks`` gives.
        instructions: Prefixes by the exact names of mteb's tasks, as in ``evaluate``.
        data_dir: Where mteb's tasks read instead of the hub: see ``with_local_data``.
        context_documents: Of each context of a contextual model, for the record.
        console: Where progress is shown; standard error by default.
    """
    counting = _Counting(model)
    parts = [part for task in tasks for part in leaves(task)]
    found: list[TaskEstimate] = []
    unknown: dict[str, str] = {}
    contextual = isinstance(model, Contextual)
    with quiet_libraries(), progress_of(console, len(parts)) as progress:
        for part in parts:
            name = part.metadata.name
            progress.update(progress.task_ids[0], description=name)
            prompts = resolve_prompts(
                part,
                model.prompts,
                instructions,
                default=model.default_prompt_name,
                contextual=contextual,
            ).by_side
            try:
                local = with_local_data(part, data_dir)
                known = local.data_loaded or local is not part
                found.append((counting.read if known else counting.published)(local, prompts))
            except DataError as error:
                unknown[name] = str(error)
            progress.advance(progress.task_ids[0])
        speed = counting.tokens_per_second()
    return Estimate(model.name, found, unknown, speed, context_documents)


@dataclass
class _Side:
    """The texts of one task behind one prompt."""

    texts: int = 0
    keys: list[NDArray[np.uint64]] = field(default_factory=list)
    sample: dict[int, str] = field(default_factory=dict)
    """The texts of the lowest keys, which are a random choice of the distinct ones."""

    def add(self, texts: list[str]) -> None:
        keys = keys_of(texts)[:, 0]
        self.texts += len(texts)
        self.keys.append(np.unique(keys))
        lowest = np.argsort(keys)[: 4 * _SAMPLE].tolist()
        self.sample |= {int(keys[row]): texts[row] for row in lowest}
        self.sample = dict(sorted(self.sample.items())[:_SAMPLE])


class _Counting:
    """Counts tasks one after the other, and remembers what was there before."""

    def __init__(self, model: EmbeddingModel) -> None:
        self._model, self._tokenize = model, Tokenize(model.tokenizer)
        self._seen: dict[str, list[NDArray[np.uint64]]] = {}
        self._samples: list[tuple[str, list[str]]] = []

    def read(self, task: AbsTask, prompts: Mapping[str, str]) -> TaskEstimate:
        sides: dict[str, _Side] = {}
        for side, texts in texts_of(task):
            sides.setdefault(prompts[side], _Side()).add(texts)
        unique = new = tokens = 0
        for prompt, each in sides.items():
            keys = np.unique(np.concatenate(each.keys))
            fresh = self._not_seen(prompt, keys)
            sample = list(each.sample.values())
            unique, new = unique + len(keys), new + len(fresh)
            tokens += round(len(fresh) * self._tokens(prompt, sample) / len(sample))
            self._samples.append((prompt, sample))
        count = sum(each.texts for each in sides.values())
        return TaskEstimate(task.metadata.name, count, unique, new, tokens, read=True)

    def _not_seen(self, prompt: str, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Those of ``keys`` that no earlier task has, which from now on it has."""
        before = self._seen.setdefault(prompt, [])
        for each in before:
            keys = np.setdiff1d(keys, each, assume_unique=True)
        before.append(keys)
        return keys

    def published(self, task: AbsTask, prompts: Mapping[str, str]) -> TaskEstimate:
        texts = unique = tokens = 0
        for each in published(task):
            prompt = prompts[each.side]
            own = self._tokens(prompt, [""]) + each.characters / _CHARACTERS
            texts, unique = texts + each.texts, unique + each.unique
            tokens += round(each.unique * min(own, self._model.max_tokens))
            self._samples.append((prompt, [_prose(round(each.characters))]))
        return TaskEstimate(task.metadata.name, texts, unique, unique, tokens, read=False)

    def tokens_per_second(self) -> float:
        """Encode samples for some seconds."""
        encode = self._encoder()
        tokens, spent = 0, 0.0
        for warm, (prompt, texts) in enumerate(cycle(self._batches())):
            wait(self._model.device)
            began = time.perf_counter()
            encode(texts, prompt)
            seconds = time.perf_counter() - began
            if not warm:
                continue  # The first one pays for what is made once.
            tokens, spent = tokens + self._tokens(prompt, texts), spent + seconds
            if spent > _SECONDS:
                break
        return tokens / spent

    def _encoder(self) -> Callable[[list[str], str], object]:
        model, context = self._model, self._model.frozen
        if isinstance(model, Contextual) and context is None:
            # All slots are read, whatever is in them.
            documents = [] if model.config.null_vector else [_prose(99)] * model.config.num_context
            context = model.build_context(documents)
        return lambda texts, prompt: model.encode(texts, prompt=prompt, context=context)

    def _batches(self) -> list[tuple[str, list[str]]]:
        """Samples of tasks in turn, each batch long enough to fill a forward."""
        return [(prompt, list(_cycled(texts, _BATCH))) for prompt, texts in self._samples]

    def _tokens(self, prompt: str, texts: Sequence[str]) -> int:
        return self._tokenize(texts, prompt, self._model.max_tokens).num_tokens


def _cycled(texts: Sequence[str], count: int) -> Iterator[str]:
    return (text for text, _ in zip(cycle(texts), range(count), strict=False))


def _prose(characters: int) -> str:
    words = "the evaluation of a model that no text has been read for takes about as long "
    return (words * (characters // len(words) + 1))[:characters]


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{seconds / 3600:,.1f} h"
