"""``TaskScorer``: has mteb score a task, and keeps the result where no other can be taken for it.

mteb gives every local model one name and finds results by name. Here a result's folder is named by
a hash of the model, the prompts and the data, and lies in the output folder of the run. Beside it
is a copy in mteb's own layout, for mteb to read.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, get_args

import mteb
import numpy as np
from mteb.abstasks.abstask import AbsTask
from mteb.abstasks.aggregated_task import AbsTaskAggregate
from mteb.cache import ResultCache
from mteb.results import TaskResult

from embedkit.errors import UserError
from embedkit.evaluation.encoding.encoders import TextEncoder
from embedkit.evaluation.encoding.in_context import ContextualEncoder
from embedkit.evaluation.mteb.corpus_search import CorpusSearch
from embedkit.evaluation.mteb.instructions import Instructions
from embedkit.evaluation.mteb.mirror import with_local_data
from embedkit.evaluation.mteb.mteb_encoder import MtebEncoder
from embedkit.evaluation.mteb.plain_labels import plain_labels
from embedkit.evaluation.mteb.published_results import PublishedResults
from embedkit.evaluation.mteb.query_recorder import recorded_queries
from embedkit.evaluation.mteb.task_prompts import Origin, resolve_prompts
from embedkit.evaluation.mteb.task_selection import leaves
from embedkit.evaluation.mteb.text_statistics import corpus_of
from embedkit.evaluation.summary import TaskScore
from embedkit.models.contextual.context import Context
from embedkit.storage.hashing import sha256_of_json


@dataclass(frozen=True)
class TaskScorer:
    """Scores tasks one by one, and keeps each result under a hash of all that it depends on."""

    encoder: TextEncoder | ContextualEncoder
    around: Callable[[TextEncoder], TextEncoder]
    wrapped: TextEncoder
    identity: str
    """Hash of ``wrapped``, stored because it is computed from all weights."""
    cache: ResultCache
    published: PublishedResults
    instructions: Instructions
    data_dir: Path | None
    dtype: str

    @classmethod
    def of(
        cls,
        encoder: TextEncoder | ContextualEncoder,
        *,
        around: Callable[[TextEncoder], TextEncoder],
        output: Path,
        instructions: Instructions,
        data_dir: Path | None,
        dtype: str,
    ) -> Self:
        """Return a scorer that keeps its results in ``output``.

        Raises:
            UserError: the ``model_meta.json`` of earlier results has a value that mteb refuses.
        """
        wrapped = around(encoder)
        identity = wrapped.identity
        return cls(
            encoder=encoder,
            around=around,
            wrapped=wrapped,
            identity=identity,
            cache=ResultCache(output),
            published=PublishedResults(output / "mteb", wrapped, instructions.prefixes, identity),
            instructions=instructions,
            data_dir=data_dir,
            dtype=dtype,
        )

    def score(self, task: AbsTask) -> tuple[TaskScore, TaskResult]:
        """Score a task, and publish its result."""
        if isinstance(task, AbsTaskAggregate):
            return self._score_parts(task)
        is_folder = hasattr(task, "own_prompts")
        dataset = task.metadata.name if is_folder else str(task.metadata.dataset["path"])
        task = with_local_data(task, self.data_dir)
        loaded = task.data_loaded
        try:
            return self._score(task, dataset)
        finally:
            if task.data_loaded and not loaded:
                task.unload_data()

    def _score(self, task: AbsTask, dataset: str) -> tuple[TaskScore, TaskResult]:
        metadata = task.metadata
        prompts, origin = resolve_prompts(task, self.encoder, self.instructions)
        # mteb finds a result by the model's name and revision alone, whatever the prompts and the
        # revision of the data.
        data = [metadata.revision, list(task.eval_splits), list(task.hf_subsets)]
        encoder, identity, contexts = self.wrapped, self.identity, {}
        if isinstance(self.encoder, ContextualEncoder):
            context = self.encoder.frozen or self._draw(self.encoder, task, prompts, data)
            encoder = self.around(self.encoder.within(context))
            identity = encoder.identity
            contexts[metadata.name] = {
                "documents": len(context.vectors),
                "corpus_size": context.corpus_size,
                "seed": context.seed,
                "hash": context.hash,
            }
        model = MtebEncoder(encoder, sha256_of_json([identity, prompts, *data]), prompts)
        path = self.cache.get_task_result_path(metadata.name, model.mteb_model_meta)
        _delete_if_torn(path)
        of_queries = path.with_suffix(".parquet")
        result = self._result_of_mteb(model, task, of_queries)
        main_score = float(result.get_score(splits=list(task.eval_splits)))
        if not math.isfinite(main_score):
            raise ValueError(f"{metadata.main_score} is not a number")
        self.published.keep(result, {"dtype": self.dtype, "prompts": prompts, "contexts": contexts})
        score = TaskScore(
            name=metadata.name,
            type=str(metadata.type),
            metric=metadata.main_score,
            # As in mteb's files, so that a kept score equals a fresh one.
            score=round(main_score, 6),
            prompts=prompts,
            seconds=result.evaluation_time,
            revision=metadata.revision,
            splits=tuple(task.eval_splits),
            contexts=contexts,
            prompt_origin=origin,
            mteb_version=result.mteb_version or "not recorded",
            dtype=self.dtype,
            max_tokens=self.wrapped.facts.max_tokens,
            datasets={metadata.name: dataset},
            queries=_named(metadata.name, of_queries, self.cache.cache_path),
            folders=_named(metadata.name, Path(metadata.dataset["path"]), self.cache.cache_path),
        )
        return score, result

    def _result_of_mteb(self, model: MtebEncoder, task: AbsTask, of_queries: Path) -> TaskResult:
        """Have mteb evaluate a task, or read its result, and write the results of queries."""
        # The bar would be mteb's; the batch size is only how many texts its loader hands over.
        with recorded_queries(task, of_queries), plain_labels(task):
            results = mteb.evaluate(
                CorpusSearch(model),
                task,
                cache=self.cache,
                co2_tracker=False,
                show_progress_bar=False,
                encode_kwargs={"batch_size": 512, "show_progress_bar": False},
            )
        if not results.task_results:
            # mteb reports a private data set out of reach, and raises nothing.
            raise RuntimeError("; ".join(error.exception for error in results.exceptions or ()))
        return results.task_results[0]

    def _draw(
        self, encoder: ContextualEncoder, task: AbsTask, prompts: Mapping[str, str], data: list[Any]
    ) -> Context:
        """Draw a context from the task, whose data stay loaded, or read the one that was drawn."""
        prompt = prompts["document"] if "document" in prompts else prompts["text"]
        key = sha256_of_json([encoder.identity, prompt, *data])
        file = f"{task.metadata.name}-{key[:16]}.safetensors"
        path = self.cache.cache_path / "contexts" / file
        with suppress(UserError):  # The file is not there, or was cut short.
            return Context.load(path)
        context = encoder.build_context(corpus_of(task), prompt)
        context.save(path)
        return context

    def _score_parts(self, task: AbsTaskAggregate) -> tuple[TaskScore, TaskResult]:
        """Score the parts of an aggregate and average them.

        mteb would keep the aggregate's result, and once a part has failed it keeps "no score" and
        does not try again.
        """
        parts: list[TaskScore] = []
        results: list[TaskResult] = []
        failed: list[str] = []
        for part in leaves(task):
            try:
                score, result = self.score(part)
                parts.append(score)
                results.append(result)
            except Exception as error:
                failed.append(f"{part.metadata.name}: {reason(error)}")
        if failed:
            raise RuntimeError("; ".join(failed))
        # mteb makes an emission of NaN of parts without one, which is no JSON.
        combined = task.combine_task_results(results)
        combined = combined.model_copy(update={"kg_co2_emissions": None})
        self.published.keep(combined, {"dtype": self.dtype})
        aggregate = TaskScore(
            name=task.metadata.name,
            type=str(task.metadata.type),
            metric=task.metadata.main_score,
            score=float(np.mean([part.score for part in parts])),
            prompts={f"{p.name}-{side}": text for p in parts for side, text in p.prompts.items()},
            seconds=sum(part.seconds for part in parts if part.seconds is not None),
            revision=sha256_of_json([part.revision for part in parts]),
            splits=tuple(task.eval_splits),
            parts={part.name: part.score for part in parts},
            contexts={name: facts for part in parts for name, facts in part.contexts.items()},
            max_tokens=self.wrapped.facts.max_tokens,
            datasets={name: id_ for part in parts for name, id_ in part.datasets.items()},
            queries={name: file for part in parts for name, file in part.queries.items()},
            folders={name: path for part in parts for name, path in part.folders.items()},
            prompt_origin=max((part.prompt_origin for part in parts), key=get_args(Origin).index),
            mteb_version=", ".join(sorted({part.mteb_version for part in parts})),
            dtype=self.dtype,
        )
        return aggregate, combined


def _named(task: str, path: Path, output: Path) -> dict[str, str]:
    """Return a path by the task's name, if it exists, so that it is found from ``output``.

    What lies beside the output is found from there even after both have been moved.
    """
    if not path.exists():
        return {}
    near = path.resolve().is_relative_to(output.resolve().parent)
    place = os.path.relpath(path.resolve(), output.resolve()) if near else str(path.resolve())
    return {task: Path(place).as_posix()}


def _delete_if_torn(path: Path) -> None:
    """Delete a result that a kill has cut short, on which mteb would fail each time."""
    if not path.exists():
        return
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        path.unlink()


def reason(error: Exception) -> str:
    """Return in one line why a task has no score."""
    first, *_ = str(error).splitlines() or [""]
    # ``datasets`` raises a ConnectionError where the hub does not answer.
    out_of_reach = isinstance(error, ConnectionError)
    remedy = "; --data-dir reads a copy of the hub's data sets" if out_of_reach else ""
    return f"{type(error).__name__}: {first}{remedy}"
