"""``failures``: the queries that two evaluations answer differently, with their texts."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Unpack

from embedkit.config import from_arguments
from embedkit.errors import DataError, UserError
from embedkit.evaluation.comparing.by_task import TaskDifference, contest
from embedkit.evaluation.comparing.comparison import mismatches
from embedkit.evaluation.comparing.runs import Group, QueryKey, Run, read_run
from embedkit.evaluation.failures.looks import looks_of
from embedkit.evaluation.failures.task_texts import TaskTexts, open_task, texts_of
from embedkit.evaluation.query_results import QueryResult
from embedkit.evaluation.settings import FailuresOptions, FailuresSettings


@dataclass(frozen=True, slots=True)
class Document:
    id: str
    text: str | None
    """``None`` if the data are gone."""


@dataclass(frozen=True, slots=True)
class Change:
    """A query that the second run answers better (won) or worse (lost) than the first."""

    outcome: Literal["won", "lost"]
    key: QueryKey
    """Part of the task, split, subset and id of the query."""
    query: str | None
    """Text of the query; ``None`` if the data are gone."""
    scores: tuple[float, float]
    """Main score for this query in the first and in the second run, times 100."""
    ranks: tuple[int | None, int | None]
    """Rank of the first relevant document in each run; ``None`` if it was not retrieved."""
    front: tuple[Document, ...]
    """Documents in front of the first relevant one in the run that does worse; if it is the first
    of all, the others that are not relevant."""
    relevant: tuple[Document, ...]
    looks: tuple[str, ...]
    """Names of what the query looks like, from ``looks_of``."""

    @property
    def gain(self) -> float:
        return self.scores[1] - self.scores[0]


@dataclass(frozen=True, slots=True)
class TaskChanges:
    """The queries of a task that are answered differently."""

    task: TaskDifference
    won: int
    lost: int
    looks: Mapping[str, Mapping[str, int]]
    """Number of queries won and lost that have each look, of those that are not listed too."""
    changes: tuple[Change, ...]
    """The queries that are listed, lost ones first."""


@dataclass(frozen=True, slots=True)
class Failures:
    """The queries that two runs answer differently, task by task."""

    first: str
    second: str
    tasks: tuple[TaskChanges, ...]
    notes: tuple[str, ...] = ()


def failures(first: str | Path, second: str | Path, **options: Unpack[FailuresOptions]) -> Failures:
    """List the queries that the second evaluation wins and loses against the first.

    Args:
        first: a folder of ``finetune``, or an output of ``evaluate``.
        second: another one.
        options: the fields of ``embedkit.FailuresSettings``, with the defaults they have there.

    Raises:
        UserError: a folder holds no evaluation, or the runs have no results of the same queries.
    """
    settings = from_arguments(FailuresSettings, options)
    runs = read_run(Path(first)), read_run(Path(second))
    if runs[0].name == runs[1].name:
        raise UserError(f"two runs are called {runs[0].name}: rename one's folder")
    tasks, notes = _comparable(*runs, settings.task)
    notes += mismatches([run.summary for run in runs], [task.task for task in tasks])
    found = []
    for task in tasks:
        pairs = _pairs(*runs, task.task)
        texts: Mapping[_Place, TaskTexts] = {}
        try:
            texts = _texts(runs[0], task.task, pairs, settings.data_dir)
        except DataError as error:
            notes.append(f"{task.task}: ids without texts, since its data cannot be read ({error})")
        limits = [run.summary.scores[task.task].max_tokens for run in runs]
        every = [
            _change(key, pair, texts.get(key[:3], _NO_TEXTS), limits) for key, pair in pairs.items()
        ]
        found.append(_chosen(task, every, settings.limit))
    return Failures(runs[0].name, runs[1].name, tuple(found), tuple(notes))


_Pair = tuple[QueryResult, QueryResult]
_Place = tuple[str, str, str]
"""Part of a task, split and subset."""
_NO_TEXTS = TaskTexts({}, {}, {})


def _comparable(
    first: Run, second: Run, wanted: Sequence[str]
) -> tuple[list[TaskDifference], list[str]]:
    """Return the tasks of which both runs have the same queries, and a line on those left out."""
    both = [task for task in first.summary.scores if task in second.summary.scores]
    if unknown := sorted(set(wanted) - set(both)):
        shown = ", ".join(both) or "none"
        raise UserError(f"--task {', '.join(unknown)}: both runs have scores of {shown}")
    groups = Group(first.name, (first,)), Group(second.name, (second,))
    tasks = contest(*groups, list(wanted) or both)
    known = [task for task in tasks.tasks if task.over_queries is not None]
    reasons = []
    if missing := ", ".join(tasks.without_queries):
        reasons.append(f"some run has no results of the same single queries: {missing}")
    without = {*tasks.without_queries, *(task.task for task in known)}
    if others := ", ".join(sorted(set(wanted) - without)):
        reasons.append(f"only retrieval and reranking tasks have queries: {others}")
    if not known:
        why = "; ".join(reasons) or "no retrieval or reranking task has a score in both"
        remedy = "score the same retrieval or reranking tasks with embedkit eval-mteb"
        raise UserError(f"{first.name}, {second.name}: {why}; {remedy}")
    return known, [f"Left out, since {reason}" for reason in reasons]


def _pairs(first: Run, second: Run, task: str) -> dict[QueryKey, _Pair]:
    """Return the results of both runs of each query whose score differs."""
    old, new = first.query_results(task) or {}, second.query_results(task) or {}
    return {key: (old[key], new[key]) for key in old if old[key].score != new[key].score}


def _texts(
    run: Run, task: str, pairs: Mapping[QueryKey, _Pair], data_dir: Path | None
) -> dict[_Place, TaskTexts]:
    """Return the texts that ``pairs`` name, or raise ``DataError`` if the data cannot be read."""
    score = run.summary.scores[task]
    # The revision of an aggregate is one of all its parts.
    revision = None if score.parts else score.revision
    folders = {part: run.folder / folder for part, folder in score.folders.items()}
    places: defaultdict[_Place, list[QueryKey]] = defaultdict(list)
    for key in pairs:
        places[key[:3]].append(key)
    opened = {
        part: open_task(part, folders.get(part), data_dir, revision)
        for part in {place[0] for place in places}
    }
    found: dict[_Place, TaskTexts] = {}
    for (part, split, subset), keys in places.items():
        results = [result for key in keys for result in pairs[key]]
        documents = {id_ for result in results for id_ in (*result.front, *result.relevant)}
        queries = [key[3] for key in keys]
        found[part, split, subset] = texts_of(opened[part], split, subset, queries, documents)
    return found


def _chosen(task: TaskDifference, every: Sequence[Change], limit: int) -> TaskChanges:
    # Sorting keeps the order of queries whose gains are equal.
    lost = sorted((change for change in every if change.gain < 0), key=lambda one: one.gain)
    won = sorted((change for change in every if change.gain > 0), key=lambda one: -one.gain)
    looks = {"won": _count(won), "lost": _count(lost)}
    return TaskChanges(task, len(won), len(lost), looks, (*lost[:limit], *won[:limit]))


def _change(key: QueryKey, pair: _Pair, texts: TaskTexts, limits: Sequence[int]) -> Change:
    won = pair[1].score > pair[0].score
    worse = pair[0] if won else pair[1]
    rank, relevant = worse.first_relevant, set(worse.relevant)
    ahead = worse.front if rank is None else worse.front[: rank - 1]
    wrong = [id_ for id_ in ahead or worse.front if id_ not in relevant]
    query, judged = texts.queries.get(key[3]), texts.judged.get(key[3], ())
    front, answers = _documents(wrong, texts), _documents(worse.relevant, texts)
    looks: list[str] = []
    if query is not None:
        looks = looks_of(
            query,
            [document.text for document in answers if document.text is not None],
            [document.text or "" for document in front],
            [number for number, id_ in enumerate(wrong) if id_ in judged],
            limits[0 if won else 1],
        )
    return Change(
        "won" if won else "lost",
        key,
        query,
        (100 * pair[0].score, 100 * pair[1].score),
        (pair[0].first_relevant, pair[1].first_relevant),
        front,
        answers,
        tuple(looks),
    )


def _documents(ids: Iterable[str], texts: TaskTexts) -> tuple[Document, ...]:
    return tuple(Document(id_, texts.documents.get(id_)) for id_ in ids)


def _count(changes: Iterable[Change]) -> dict[str, int]:
    return dict(Counter(look for change in changes for look in change.looks).most_common())
