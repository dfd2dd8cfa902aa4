"""An evaluation from what the user names: tasks, data, and what is put around the model."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mteb.abstasks.abstask import AbsTask

from embedkit.data import cache
from embedkit.errors import UserError
from embedkit.evaluation.encoding.encoders import Remembering, TextEncoder, Truncated
from embedkit.evaluation.encoding.over_ranks import OverRanks
from embedkit.evaluation.encoding.vector_cache import VectorCache
from embedkit.evaluation.mteb.estimate import Estimate
from embedkit.evaluation.mteb.estimate import estimate as counted
from embedkit.evaluation.mteb.mirror import check_mirror
from embedkit.evaluation.mteb.scoring import evaluate as score
from embedkit.evaluation.mteb.selection import leaves, select_tasks
from embedkit.evaluation.summary import Summary
from embedkit.measuring import tasks_of
from embedkit.models.embedder import Embedder
from embedkit.prompts import instruction_prompts
from embedkit.recipe import Recipe


@dataclass(frozen=True)
class Wanted:
    """What to evaluate on."""

    tasks: Sequence[str | Path]
    """Names of mteb's tasks, and task folders or folders of them."""
    benchmark: str | None
    recipe: Recipe | None
    data_dir: Path | None
    """A mirror that mteb's tasks read instead of the hub."""
    instructions: bool
    """Whether mteb's tasks get the paper's instructions."""

    def select(self, folder: Path) -> tuple[list[AbsTask], dict[str, str]]:
        """The tasks and their instructions; what a recipe holds out is written to ``folder``.

        Raises:
            UserError: nothing is named, or what is named is not there.
        """
        folders = [Path(task) for task in self.tasks if Path(task).is_dir()]
        names = [str(task) for task in self.tasks if not Path(task).is_dir()]
        if self.recipe is None:
            tasks = select_tasks(self.benchmark, names, folders)
        elif self.tasks or self.benchmark:
            raise UserError(
                "recipe excludes tasks and benchmark: the recipe says what to evaluate on"
            )
        else:
            tasks = tasks_of(self.recipe, folder)
        if self.data_dir is not None:
            check_mirror(self.data_dir, [part for task in tasks for part in leaves(task)])
        if not self.instructions:
            return tasks, {}
        return tasks, instruction_prompts(task.metadata.name for task in tasks)


def evaluate(
    embedder: Embedder,
    wanted: Wanted,
    output: Path,
    *,
    truncate_dim: int | None = None,
    cache_bytes: int | None = None,
) -> Summary:
    """Score a model on all ranks, of which rank 0 writes. Call it inside ``distributed.group``.

    Args:
        embedder: the model, on this rank's device.
        wanted: what to evaluate on.
        output: where results and ``summary.json`` go.
        truncate_dim: score the first dimensions of the vectors alone, at unit norm.
        cache_bytes: of vectors that are kept under ``$EMBEDKIT_CACHE``; ``None`` keeps none.

    Raises:
        UserError: what is wanted is not there, or the model has fewer dimensions.
    """
    width = embedder.backbone.width
    if truncate_dim is not None and not 1 <= truncate_dim <= width:
        raise UserError(
            f"truncate_dim {truncate_dim}: {embedder.name} has vectors of {width} dimensions; "
            f"choose from 1 to {width}"
        )

    def scored(encoder: TextEncoder) -> Summary:
        tasks, instructions = wanted.select(output / "tasks")
        if cache_bytes is not None:
            encoder = Remembering(encoder, VectorCache(cache.root() / "vectors", cache_bytes))
        if truncate_dim is not None:
            encoder = Truncated(encoder, truncate_dim)
        return score(
            encoder,
            tasks,
            output,
            instructions=instructions,
            dtype=str(embedder.autocast or "float32").removeprefix("torch."),
            data_dir=wanted.data_dir,
        )

    return OverRanks(embedder).lead(scored)


def estimate(embedder: Embedder, wanted: Wanted) -> Estimate:
    """What ``evaluate`` would encode and how long one such device takes; nothing is scored.

    Raises:
        UserError: what is wanted is not there.
    """
    with tempfile.TemporaryDirectory() as folder:
        tasks, instructions = wanted.select(Path(folder))
        return counted(embedder, tasks, instructions=instructions, data_dir=wanted.data_dir)
