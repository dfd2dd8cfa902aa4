"""Reads evaluations from the folders of runs, one by one or several seeds as a group."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedkit.config import expand
from embedkit.errors import UserError
from embedkit.evaluation.query_results import QueryResult, read_query_results
from embedkit.evaluation.summary import Summary

QueryKey = tuple[str, str, str, str]
"""Part of the task, split, subset and id of a query."""


@dataclass(frozen=True, slots=True)
class Run:
    """An evaluation and the folder that holds it."""

    name: str
    folder: Path
    """Folder of ``summary.json``."""
    summary: Summary

    def query_results(self, task: str) -> dict[QueryKey, QueryResult] | None:
        """Return the result of each query of a task, or ``None`` if some part has none.

        Raises:
            UserError: a file is gone or damaged, or was written by another version.
        """
        score = self.summary.scores[task]
        if len(score.queries) < max(1, len(score.parts)):
            return None
        found: dict[QueryKey, QueryResult] = {}
        for part, file in score.queries.items():
            try:
                results = read_query_results(self.folder / file)
            except ValueError as error:
                raise UserError(
                    f"{error}; delete it and the .json beside it, and score {task} "
                    "again with embedkit eval-mteb"
                ) from None
            found |= {(part, *result.key): result for result in results}
        return found


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that make one row: a single one, or several seeds of one recipe."""

    name: str
    runs: tuple[Run, ...]

    @property
    def title(self) -> str:
        return self.name if len(self.runs) == 1 else f"{self.name} ({len(self.runs)} runs)"

    def scores(self, tasks: Sequence[str]) -> NDArray[np.float64]:
        """Return scores times 100, shaped ``(runs, tasks)``."""
        return 100 * np.array(
            [[run.summary.scores[task].score for task in tasks] for run in self.runs]
        )

    def query_scores(self, task: str) -> dict[QueryKey, float] | None:
        """Return the mean score over runs of each query of a task, times 100, if all have it."""
        tables = [run.query_results(task) for run in self.runs]
        known = [table for table in tables if table is not None]
        if len(known) < len(tables) or any(table.keys() != known[0].keys() for table in known):
            return None
        return {
            key: 100 * float(np.mean([table[key].score for table in known])) for key in known[0]
        }


def read_run(folder: Path) -> Run:
    """Read a run of ``finetune`` or an output folder of ``eval-mteb``.

    Raises:
        UserError: the folder holds no evaluation.
    """
    for path in (folder, folder / "eval" / "after"):
        summary = path / "summary.json"
        if summary.is_file():
            try:
                return Run(_name(folder.resolve()), path, Summary.read(summary))
            except ValueError:
                raise UserError(f"{summary}: is no summary of an evaluation") from None
    raise UserError(
        f"{folder}: holds neither summary.json nor eval/after/summary.json: evaluate it with "
        "embedkit eval-mteb, or give its recipe an [evaluation]"
    )


def read_group(pattern: str) -> Group:
    """Read all runs whose folders match a pattern such as ``runs/a_s*``.

    Raises:
        UserError: fewer than two folders match, or one of them holds no evaluation.
    """
    path = Path(expand(pattern))
    # ``Path.glob`` takes no pattern that starts at the root.
    relative = path.relative_to(path.anchor)
    found = sorted(Path(path.anchor).glob(str(relative))) if relative.parts else []
    folders = [folder for folder in found if folder.is_dir()]
    if len(folders) < 2:
        matching = f"only {folders[0]} matches" if folders else "no folder matches"
        raise UserError(f"{pattern}: {matching}; give a pattern of several runs, in quotes")
    return Group(_name(path), tuple(read_run(folder) for folder in folders))


def _name(folder: Path) -> str:
    """Return the name of a run; an evaluation within one is named after both."""
    run = folder.parent.parent.name
    return f"{run} {folder.name}" if folder.parent.name == "eval" else folder.name
