"""Scores of an evaluation, their means over types and tasks, and the tasks without a score."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from filelock import FileLock
from pydantic import TypeAdapter
from rich.table import Column, Table

from embedkit.errors import UserError, counted
from embedkit.evaluation import prompts_used
from embedkit.evaluation.tables import as_text
from embedkit.storage.atomic import write_json

TYPES = (
    "Classification",
    "Clustering",
    "PairClassification",
    "Reranking",
    "Retrieval",
    "STS",
    "Summarization",
)
"""The types of MTEB(eng, v1), in the order in which they are reported."""


@dataclass(frozen=True, slots=True)
class TaskScore:
    """A task's main score, between -1 and 1, and what it was measured with."""

    name: str
    type: str
    metric: str
    score: float
    prompts: Mapping[str, str]
    """Prefixes of the texts by side: query and document, or text."""
    prompt_origin: str
    """Source of the prompts, ``none`` if there are none."""
    seconds: float | None
    """Duration of the first run that measured the score."""
    revision: str
    """Revision of the data: a content hash for task folders."""
    splits: tuple[str, ...]
    mteb_version: str
    """Version of mteb that measured the score; several are joined by commas."""
    dtype: str
    """Precision of the model, such as ``float16``."""
    max_tokens: int
    """Length at which the model cuts texts."""
    datasets: Mapping[str, str]
    """Hub id of the data by task or part, or the name of a task folder."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Scores that this one is the mean of."""
    contexts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Context of a contextual model by task or part: the number of ``documents``, the
    ``corpus_size`` and ``seed`` of their draw, and the context's ``hash``."""
    queries: Mapping[str, str] = field(default_factory=dict)
    """File of the result of each query by task or part, relative to the folder of the summary.
    Tasks that are neither retrieval nor reranking have none."""
    folders: Mapping[str, str] = field(default_factory=dict)
    """Folder that the data were read from, by task or part: a task folder or a repository in a
    mirror, absolute or relative to the folder of the summary. Data from the hub have none."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The scores of one model on the tasks that were asked for."""

    model: str
    identity: str
    dtype: str
    tasks: Mapping[str, str]
    """Type of every task that was asked for."""
    scores: Mapping[str, TaskScore]
    failed: Mapping[str, str]
    """Reason why a task has no score, by its name. Means are over tasks with a score."""
    versions: Mapping[str, str]
    revision: str
    """Hash of all that scores depend on besides the data: model, precision, prompts, contexts."""

    @property
    def missing(self) -> list[str]:
        return [name for name in self.tasks if name not in self.scores]

    @property
    def is_complete(self) -> bool:
        """Whether every task was run; a task that failed was."""
        return self.tasks.keys() == self.scores.keys() | self.failed.keys()

    @property
    def type_means(self) -> dict[str, float]:
        """Mean of each type that has a score, in the order of MTEB(eng, v1)."""
        tasks = self.scores.values()
        present = {task.type for task in tasks}
        order = [*(type_ for type_ in TYPES if type_ in present), *sorted(present - set(TYPES))]
        return {type_: fmean(task.score for task in tasks if task.type == type_) for type_ in order}

    @property
    def mean_over_types(self) -> float | None:
        return fmean(self.type_means.values()) if self.scores else None

    @property
    def mean_over_tasks(self) -> float | None:
        return fmean(task.score for task in self.scores.values()) if self.scores else None

    @property
    def coverage(self) -> str:
        return f"{len(self.scores)} of {len(self.tasks)} tasks"

    def table(self) -> Table:
        """Return a table of scores and means, times 100 as is the custom."""
        title = f"{self.model} ({self.coverage}, scores times 100)"
        table = Table("task", "metric", Column("score", justify="right"), title=title)
        for task in self.scores.values():
            table.add_row(task.name, task.metric, _percent(task.score))
        table.add_section()
        means = self.type_means
        for type_ in dict.fromkeys((*TYPES, *means)):
            table.add_row(type_, "mean", _percent(means.get(type_)))
        table.add_section()
        table.add_row("mean over types", "", _percent(self.mean_over_types))
        table.add_row("mean over tasks", "", _percent(self.mean_over_tasks))
        return table

    def text(self) -> str:
        """Return the table, the prompts of all tasks, and each missing task with the reason."""
        lines = [as_text(self.table()).rstrip(), *self.prompts(), *self.reasons()]
        return "\n".join(lines) + "\n"

    def prompts(self) -> list[str]:
        """Return a line on whose prompts were used, and one for each prompt with its tasks."""
        scores = self.scores.values()
        used = prompts_used.origins(score.prompt_origin for score in scores)
        return [used, *prompts_used.listed({score.name: score.prompts for score in scores})]

    def reasons(self) -> list[str]:
        """Return a line for each task without a score, which says why."""
        return [f"missing: {name}: {self.failed.get(name, 'not run')}" for name in self.missing]

    def outcome(self, name: str) -> str:
        """Return a task's score, or the reason why it has none, in one line."""
        if score := self.scores.get(name):
            return f"{score.metric} {_percent(score.score)}"
        return f"failed: {self.failed[name]}"

    def write(self, path: Path) -> None:
        """Write all fields and the means as JSON."""
        means = ("coverage", "missing", "type_means", "mean_over_types", "mean_over_tasks")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, asdict(self) | {name: getattr(self, name) for name in means})

    def replaces(self, path: Path) -> str:
        """Return a remark on the file if ``merge_into`` will replace what it has, else ``""``.

        Raises:
            UserError: the file is not one that ``write`` wrote.
        """
        held = _held(path)
        if held is None or held.revision == self.revision:
            return ""
        return (
            f"{path} had the scores of {held.model} ({held.dtype}) of another model, precision, "
            "limit, prompt or context, and is replaced; results stay in "
            f"{path.with_name('mteb') / 'results'}"
        )

    def merge_into(self, path: Path) -> None:
        """Write this summary, with the other tasks that the file has of the same ``revision``.

        Scores are in the order of the tasks. Several processes may do so with one file.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock")):
            merged, held = self, _held(path)
            if held and held.revision == self.revision:
                tasks = {**held.tasks, **self.tasks}
                # A task that failed once may have a score now, and the other way round.
                scores, failed = {**held.scores, **self.scores}, {**held.failed, **self.failed}
                scored = scores.keys() - self.failed.keys()
                lost = failed.keys() - self.scores.keys()
                merged = replace(
                    self,
                    tasks=tasks,
                    scores={task: scores[task] for task in tasks if task in scored},
                    failed={task: failed[task] for task in tasks if task in lost},
                )
            merged.write(path)

    @classmethod
    def read(cls, path: Path) -> "Summary":
        """Read the file that ``write`` wrote.

        Raises:
            ValueError: the file is no summary.
        """
        return TypeAdapter(cls).validate_json(path.read_bytes())


def _held(path: Path) -> Summary | None:
    """Return the summary in a file, if there is one."""
    try:
        return Summary.read(path)
    except FileNotFoundError:
        return None
    except ValueError:
        mistake = f"{path}: is no summary of this version of embedkit"
        raise UserError(f"{mistake}; choose another --output") from None


class EvaluationInterrupted(KeyboardInterrupt):
    """Signal that an evaluation was interrupted; ``summary`` has the scores so far.

    ``args`` holds the number of the signal, if the evaluation got it.
    """

    def __init__(self, summary: Summary, *number: int) -> None:
        super().__init__(*number)
        self.summary = summary


def comparison(before: Summary, after: Summary) -> Table:
    """Return a table of each task's score before and after, and the difference, times 100.

    Means are over the tasks that have both scores on the same data, so that both are of the same
    tasks.
    """
    same = before.model == after.model
    models = f"{before.model}, before and after" if same else f"{before.model} and {after.model}"
    columns = [Column(name, justify="right") for name in ("before", "after", "difference")]
    table = Table("task", "metric", *columns, title=f"{models} (scores times 100)")
    shared: list[str] = []
    for name in dict.fromkeys([*before.tasks, *after.tasks]):
        pair = [summary.scores.get(name) for summary in (before, after)]
        known = [score for score in pair if score]
        alike = len({(score.metric, score.revision, score.splits) for score in known}) == 1
        if len(known) == 2 and alike:
            shared.append(name)
        scores = (score.score if score else None for score in pair)
        metric = known[0].metric if known else ""
        table.add_row(name, metric, *_change(*scores, comparable=alike))
    table.add_section()
    old, new = (
        replace(summary, scores={name: summary.scores[name] for name in shared})
        for summary in (before, after)
    )
    types = _change(old.mean_over_types, new.mean_over_types)
    tasks = _change(old.mean_over_tasks, new.mean_over_tasks)
    table.add_row("mean over types", "", *types)
    table.add_row(f"mean over {counted(len(shared), 'task')}", "", *tasks)
    return table


def _percent(score: float | None) -> str:
    return "-" if score is None else f"{100 * score:.2f}"


def _change(before: float | None, after: float | None, *, comparable: bool = True) -> list[str]:
    shown = [_percent(before), _percent(after)]
    if not comparable or before is None or after is None:
        return [*shown, "-"]
    return [*shown, f"{100 * (after - before):+.2f}"]
