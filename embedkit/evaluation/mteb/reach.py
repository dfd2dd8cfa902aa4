"""Says before a run which of its tasks' data can be read, so that a day does not end in errors."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from mteb.abstasks.abstask import AbsTask

from embedkit.data.sources import hub
from embedkit.errors import DataError, some
from embedkit.evaluation.mteb.mirror import folder_of
from embedkit.evaluation.mteb.task_selection import leaves
from embedkit.storage.offline import hub_answers


def report(tasks: Sequence[AbsTask], data_dir: Path | None) -> str | None:
    """Return a line on the tasks that can be read after a run; ``None`` if none needs other data.

    Data can be read in ``data_dir``; without one under ``$EMBEDKIT_HUB``, in a copy that
    ``datasets`` made earlier, or on the hub, if it answers. Nothing is fetched.

    Raises:
        DataError: ``data_dir`` lacks the repository of a task.
    """
    tasks = [task for task in tasks if not task.data_loaded]
    if not tasks:
        return None
    answers = cache(hub_answers)
    lacking: dict[str, list[str]] = {}
    for task in tasks:
        for source in (part.metadata.dataset for part in leaves(task)):
            if not (folder_of(data_dir, source) if data_dir else _is_here(source) or answers()):
                lacking.setdefault(task.metadata.name, []).append(str(source["path"]))
    if not lacking:
        return f"evaluation: the data of all {len(tasks)} tasks can be read"
    count = f"{len(lacking)} of {len(tasks)} tasks"
    if data_dir:
        paths = [path for paths in lacking.values() for path in paths]
        raise DataError(
            f"evaluation.data_dir: {data_dir} lacks the data of {count} ({some(paths)}); put each "
            "repository in a folder owner/name, or leave data_dir out"
        )
    return (
        f"evaluation: the data of {count} cannot be read now ({some(list(lacking))}), since the "
        "hub does not answer; the model is exported before it is scored"
    )


def _is_here(source: Mapping[str, Any]) -> bool:
    """Whether ``$EMBEDKIT_HUB`` has a repository, or ``datasets`` keeps a copy of it."""
    import datasets

    owner, _, name = str(source["path"]).rpartition("/")
    kept = "___".join(filter(None, [owner, datasets.naming.camelcase_to_snakecase(name)]))
    copies = Path(datasets.config.HF_DATASETS_CACHE).expanduser().glob(f"{kept}/*/*/*")
    return bool(hub.mirror(str(source["path"])) or next(copies, None))
