"""Scoring a model on mteb's tasks, so that no result can be taken for another's.

mteb gives every local model one name and keeps results by name; here the name of a result's folder
is a hash of the model, the prompts and the data, and the results lie in the run's own folder.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, get_args

import mteb
import numpy as np
from mteb.abstasks.abstask import AbsTask
from mteb.abstasks.aggregated_task import AbsTaskAggregate
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.cache import ResultCache
from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.results import TaskResult
from mteb.similarity_functions import cos_sim, pairwise_cos_sim
from mteb.types import PromptType
from rich.console import Console

from embedkit.errors import UserError
from embedkit.evaluation.encoding.encoders import TextEncoder
from embedkit.evaluation.encoding.in_context import ContextualEncoder
from embedkit.evaluation.mteb.contexts import context_of, facts
from embedkit.evaluation.mteb.mirror import with_local_data
from embedkit.evaluation.mteb.task_prompts import Origin, Prompts, resolve_prompts
from embedkit.evaluation.mteb.task_selection import leaves
from embedkit.evaluation.progress import progress_of, quiet_libraries
from embedkit.evaluation.summary import Summary, TaskScore
from embedkit.storage.hashing import sha256_of_json


def evaluate(
    encoder: TextEncoder | ContextualEncoder,
    tasks: Sequence[AbsTask],
    output: Path,
    *,
    around: Callable[[TextEncoder], TextEncoder] = lambda encoder: encoder,
    instructions: Mapping[str, str] | None = None,
    dtype: str = "float32",
    data_dir: Path | None = None,
    console: Console | None = None,
) -> Summary:
    """Score a model on tasks, keep each result under ``output``, and write ``summary.json`` there.

    What is scored already is not scored again. A task that fails is reported in the summary, and
    the others go on; an interruption loses only the task at hand.

    Args:
        encoder: The model. A contextual one is put into a context of each task, which is kept under
            ``output/contexts`` and told in the summary.
        tasks: What ``select_tasks`` gives.
        output: The folder of the results; one folder can hold those of many models.
        around: Puts a cache or the like around the encoder, a contextual one's in its context.
        instructions: Prefixes by the exact names of mteb's tasks, which go before the model's.
            A task folder has its own or the model's.
        dtype: The precision of the model, for the record.
        data_dir: Where mteb's tasks read instead of the hub: see ``with_local_data``.
        console: Where progress is shown; standard error by default.
    """
    if not tasks:
        raise UserError("no task to evaluate on: name a benchmark, tasks or folders of tasks")
    whole = around(encoder)
    given = dict(instructions or {})
    run = _Run(encoder, around, whole, whole.identity, ResultCache(output), given, data_dir)
    scores: dict[str, TaskScore] = {}
    failed: dict[str, str] = {}
    with quiet_libraries(), progress_of(console, len(tasks)) as progress:
        for task in tasks:
            name = task.metadata.name
            progress.update(progress.task_ids[0], description=name)
            try:
                scores[name] = run.score(task)
                line = f"{scores[name].metric} {100 * scores[name].score:.2f}"
            except Exception as error:  # One failing task must not lose the others.
                failed[name] = _reason(error)
                line = f"failed: {failed[name]}"
            progress.console.print(f"{name}: {line}", markup=False, highlight=False, soft_wrap=True)
            progress.advance(progress.task_ids[0])
    types = {task.metadata.name: str(task.metadata.type) for task in tasks}
    versions = {name: _version(name) for name in ("embedkit-neobert", "mteb", "torch")}
    summary = Summary(whole.name, run.identity, dtype, types, scores, failed, versions)
    summary.write(output / "summary.json")
    return summary


@dataclass(frozen=True)
class _Run:
    encoder: TextEncoder | ContextualEncoder
    around: Callable[[TextEncoder], TextEncoder]
    whole: TextEncoder
    """What is around the encoder, and it."""
    identity: str
    """Kept, because it is a hash over all weights."""
    cache: ResultCache
    instructions: dict[str, str]
    data_dir: Path | None

    def score(self, task: AbsTask) -> TaskScore:
        if isinstance(task, AbsTaskAggregate):
            return self._score_parts(task)
        task = with_local_data(task, self.data_dir)
        contextual = isinstance(self.encoder, ContextualEncoder)
        prompts = resolve_prompts(
            task,
            self.encoder.prompts,
            self.instructions,
            default=self.encoder.default_prompt_name,
            contextual=contextual,
        )
        loaded = task.data_loaded
        try:
            return self._score(task, prompts)
        finally:
            if task.data_loaded and not loaded:
                task.unload_data()

    def _score(self, task: AbsTask, prompts: Prompts) -> TaskScore:
        encoder, identity, contexts = self._placed(task, prompts.by_side)
        revision = _revision(identity, task, prompts.by_side)
        model = _MtebEncoder(encoder, revision, prompts.by_side)
        _drop_torn(self.cache.get_task_result_path(task.metadata.name, model.mteb_model_meta))
        # The bar would be mteb's; the batch size is only how many texts its loader hands over.
        found = mteb.evaluate(
            model,
            task,
            cache=self.cache,
            co2_tracker=False,
            show_progress_bar=False,
            encode_kwargs={"batch_size": 512, "show_progress_bar": False},
        )
        if not found.task_results:
            # A private data set that is out of reach is reported, not raised.
            raise RuntimeError("; ".join(each.exception for each in found.exceptions or ()))
        return _task_score(task, found.task_results[0], prompts, contexts)

    def _placed(
        self, task: AbsTask, prompts: Mapping[str, str]
    ) -> tuple[TextEncoder, str, dict[str, Any]]:
        """The encoder for a task, what it is known by, and the facts of its context by task."""
        if not isinstance(self.encoder, ContextualEncoder):
            return self.whole, self.identity, {}
        context = context_of(self.encoder, task, prompts, self.cache.cache_path / "contexts")
        placed = self.around(self.encoder.within(context))
        return placed, placed.identity, {task.metadata.name: facts(context)}

    def _score_parts(self, task: AbsTaskAggregate) -> TaskScore:
        """Score the parts and combine them anew each time.

        mteb keeps an aggregate's result, and once a part has failed it keeps "no score" and takes
        that for done.
        """
        parts: list[TaskScore] = []
        failed: list[str] = []
        for part in leaves(task):
            try:
                parts.append(self.score(part))
            except Exception as error:
                failed.append(f"{part.metadata.name}: {_reason(error)}")
        if failed:
            raise RuntimeError("; ".join(failed))
        seconds = [part.seconds for part in parts if part.seconds is not None]
        return TaskScore(
            name=task.metadata.name,
            type=str(task.metadata.type),
            metric=task.metadata.main_score,
            score=float(np.mean([part.score for part in parts])),
            prompts={f"{p.name}-{side}": text for p in parts for side, text in p.prompts.items()},
            seconds=sum(seconds),
            revision=sha256_of_json([part.revision for part in parts]),
            splits=tuple(task.eval_splits),
            parts={part.name: part.score for part in parts},
            contexts={name: each for part in parts for name, each in part.contexts.items()},
            prompt_origin=max((part.prompt_origin for part in parts), key=get_args(Origin).index),
        )


class _MtebEncoder:
    """A text encoder as mteb wants it, for one task."""

    def __init__(self, encoder: TextEncoder, revision: str, prompts: Mapping[str, str]) -> None:
        self._encoder, self._prompts = encoder, prompts
        self.mteb_model_meta = ModelMeta.create_empty(
            overwrites={
                "name": f"embedkit/{encoder.name.replace('/', '_')}",
                "revision": revision,
                "similarity_fn_name": ScoringFunction.COSINE,
            }
        )

    def encode(
        self,
        inputs: Any,
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **_: Any,
    ) -> np.ndarray:
        """Embed each distinct text once: of MindSmallReranking's queries 98 % are repeated."""
        places: dict[str, int] = {}
        rows = [places.setdefault(text, len(places)) for batch in inputs for text in batch["text"]]
        prompt = self._prompts[prompt_type.value if prompt_type else "text"]
        vectors = self._encoder.encode(list(places), prompt=prompt)
        return vectors if len(places) == len(rows) else vectors[rows]

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        return cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        return pairwise_cos_sim(embeddings1, embeddings2)


def _revision(identity: str, task: AbsTask, prompts: Mapping[str, str]) -> str:
    """All that a score depends on, since mteb finds results by name and revision alone.

    It looks at neither prompts nor, once a result is whole, the revision of the data.
    """
    inputs = [identity, dict(prompts), task.metadata.revision, task.eval_splits, task.hf_subsets]
    return sha256_of_json(inputs)


def _drop_torn(path: Path) -> None:
    """Remove a result that a kill has cut short, which mteb would stumble over each time."""
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except ValueError:
        path.unlink()


def _task_score(
    task: AbsTask, result: TaskResult, prompts: Prompts, contexts: Mapping[str, Any]
) -> TaskScore:
    score = float(result.get_score(splits=list(task.eval_splits)))
    if not math.isfinite(score):
        raise ValueError(f"{task.metadata.main_score} is not a number")
    return TaskScore(
        name=task.metadata.name,
        type=str(task.metadata.type),
        metric=task.metadata.main_score,
        score=round(score, 6),  # As in mteb's files, so that a kept score equals a fresh one.
        prompts=prompts.by_side,
        seconds=result.evaluation_time,
        revision=task.metadata.revision,
        splits=tuple(task.eval_splits),
        contexts=contexts,
        prompt_origin=prompts.origin,
    )


def _reason(error: Exception) -> str:
    first, *_ = str(error).splitlines() or [""]
    # What datasets raises where the hub does not answer.
    out_of_reach = isinstance(error, ConnectionError)
    remedy = "; --data-dir reads a copy of the hub's data sets" if out_of_reach else ""
    return f"{type(error).__name__}: {first}{remedy}"


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"
