"""The folder of a run: claimed once, never overwritten unasked, resumed only by the same run."""

import json
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

import tomli_w
import torch

from embedkit.config import differences
from embedkit.errors import UserError
from embedkit.recipe import Training
from embedkit.recipe.renamed_keys import with_new_names
from embedkit.training import checkpoint

_NEUTRAL = (
    "data.workers",
    "data.batch_table",
    "logging.",
    "checkpoints.",
    "evaluation.",
    "held_out.",
)
"""Keys that cannot change what is trained: a resumed run may have other values. A batch table is
known by its hash among the sources, wherever it lies."""

_PACKAGES = ("embedkit-neobert", "torch", "transformers", "sentence-transformers", "mteb")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where the files of a run lie."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def evaluation(self) -> Path:
        return self.path / "eval"


def check(path: Path, *, resume: bool, overwrite: bool) -> None:
    """See whether ``path`` may become the folder of a run; changes nothing.

    Raises:
        UserError: something lies there, and neither ``resume`` nor ``overwrite`` was asked for; or
            one of them was, and it is not a run.
    """
    if resume and overwrite:
        raise UserError("--resume and --overwrite exclude each other")
    if path.exists() and not path.is_dir():
        raise UserError(f"{path}: is a file; choose another --output")
    is_run = (path / "run.json").is_file()
    if resume and not is_run:
        raise UserError(f"{path}: no run to resume; leave --resume out, or check --output")
    if resume or not path.is_dir() or not any(path.iterdir()):
        return
    if overwrite and not is_run:
        raise UserError(f"{path}: is not a run of embedkit, so --overwrite leaves it alone")
    if not overwrite:
        raise UserError(
            f"{path}: is not empty; continue the run in it with --resume, replace it with "
            "--overwrite, or choose another --output"
        )


def claim(path: Path, *, resume: bool, overwrite: bool) -> RunFolder:
    """Make ``path`` the folder of this run; raises as ``check`` does."""
    check(path, resume=resume, overwrite=overwrite)
    if overwrite and path.is_dir():
        shutil.rmtree(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be made ({error.strerror}); choose another --output"
        ) from None
    return RunFolder(path)


def describe(folder: RunFolder, recipe: Training, facts: Mapping[str, Any]) -> None:
    """Write ``recipe.toml`` as resolved, and ``run.json``: versions, hardware, fingerprints."""
    record = {
        "versions": {name: _version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "hardware": _hardware(),
        "threads": torch.get_num_threads(),
        **{key: value for key, value in facts.items() if key != "recipe"},
    }
    # First, since it is what makes a folder a run, which --resume and --overwrite go by.
    (folder.path / "run.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    tables = recipe.model_dump(mode="json", exclude_none=True)
    (folder.path / "recipe.toml").write_bytes(tomli_w.dumps(tables).encode())


def newest_checkpoint(
    folder: RunFolder, facts: Mapping[str, Any], *, allow_world_size_change: bool
) -> tuple[checkpoint.Checkpoint | None, list[str]]:
    """The checkpoint to continue from, and remarks for the user.

    Raises:
        UserError: recipe, data, model, world size, or the version of a loss, reader or pooling
            that another distribution brings, are not those of the checkpoint.
    """
    found, remarks = checkpoint.newest(folder.checkpoints)
    if found is None:
        return None, [*remarks, "no whole checkpoint: starting from step 0"]
    then, now = found.facts, facts
    if then["world_size"] != now["world_size"]:
        if not allow_world_size_change:
            _refuse_world_size(folder, then, now)
        remarks.append(f"world size {then['world_size']} -> {now['world_size']}")
    changes = _recipe_changes(then["recipe"], now["recipe"])
    for kind in ("sources", "model"):
        hashes = differences(_shortened(then[kind]), _shortened(now[kind]))
        changes += [f"{kind}.{line}" for line in hashes]
    changes += differences(then.get("extensions", {}), now.get("extensions", {}), "extensions")
    if changes:
        raise UserError(
            f"{folder.path}: this is another run than the one of its checkpoint: "
            f"{'; '.join(changes)}; undo the change, or choose another --output"
        )
    if then["threads"] != now["threads"]:
        remarks.append(
            f"{then['threads']} threads then, {now['threads']} now: the numbers will agree only to "
            "rounding"
        )
    return found, remarks


def _refuse_world_size(
    folder: RunFolder, then: Mapping[str, Any], now: Mapping[str, Any]
) -> NoReturn:
    effect = "the numbers will then agree only to rounding and with dropout off"
    if now.get("batches_per_rank"):
        effect = "every rank reads batches of its own, so that steps will be made of other ones"
    raise UserError(
        f"{folder.path}: its checkpoint was made on {then['world_size']} ranks, now there are "
        f"{now['world_size']}; {effect}; pass --allow-world-size-change to accept that"
    )


def _recipe_changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    changes = differences(with_new_names(then, "the checkpoint")[0], now)
    # With a constant rate no step knows how many there are, and none draws other rows.
    longer = (now["steps"] or 0) >= (then["steps"] or 0)
    endless = now["optim"]["schedule"] == "constant" and longer
    neutral = (*_NEUTRAL, "steps:") if endless else _NEUTRAL
    return [change for change in changes if not change.startswith(neutral)]


def _shortened(hashes: Mapping[str, str]) -> dict[str, str]:
    return {name: each[:12] for name, each in hashes.items()}


def _hardware() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"{platform.machine()} CPU ({torch.backends.cpu.get_cpu_capability()})"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
