"""The folder of a run: overwritten only on request, resumed only by the same run."""

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
import torch

from embedkit.config import differences, read_toml
from embedkit.errors import UserError
from embedkit.recipe import Training
from embedkit.recipe.load_recipes import of_its_kind, with_new_names
from embedkit.storage.atomic import aside_of, write_json, write_text
from embedkit.storage.folders import check_replaceable, check_writable, set_aside, writing_to
from embedkit.storage.versions import STACK, versions_of
from embedkit.training import checkpoint

_INERT = (
    "data.workers",
    "data.batch_table",
    "logging.",
    "checkpoints.",
    "evaluation.",
    "held_out.",
    "validation.patience",
)
"""Recipe keys that do not affect training, so that a resumed run may change them. The content of a
batch table is compared by its hash among the sources, so that its path may change."""

_FILES = ("recipe.toml", "run.json", "metrics.jsonl", "held_out.jsonl", "validation.jsonl")
_FOLDERS = ("checkpoints", "manifests", "model", "eval", "tensorboard", "wandb")
_ENTRIES = {*_FILES, *(aside_of(Path(name)).name for name in _FILES), *_FOLDERS}
"""Names of the files and folders that a run writes into its folder."""


def check(path: Path, *, resume: bool, overwrite: bool) -> None:
    """Verify that ``path`` may become the folder of a run; change nothing.

    It comes before data are read, which may take an hour.

    Raises:
        UserError: the folder cannot be written; it is not empty, and neither ``resume`` nor
            ``overwrite`` is set; one of them is set, and the folder is not a run; or a user's own
            files would be lost.
    """
    if resume and overwrite:
        raise UserError("--resume and --overwrite exclude each other")
    if path.exists() and not path.is_dir():
        raise UserError(f"{path}: is a file; choose another --output")
    check_writable(path)
    is_run = (path / "run.json").is_file()
    if resume and not is_run:
        raise UserError(f"{path}: no run to resume; leave --resume out, or check --output")
    if not path.is_dir() or not any(path.iterdir()):
        return
    if overwrite and not is_run:
        raise UserError(f"{path}: is not a run of embedkit, so --overwrite leaves it alone")
    if not resume and not overwrite:
        raise UserError(
            f"{path}: is not empty; continue the run in it with --resume, replace it with "
            "--overwrite, or choose another --output"
        )
    # An export that was killed leaves hidden folders beside the model.
    names = {file.name for file in path.iterdir() if not file.name.startswith(".model.embedkit-")}
    if overwrite and (foreign := sorted(names - _ENTRIES)):
        raise UserError(
            f"{path}: is not replaced, since no run of embedkit wrote {', '.join(foreign)} there; "
            "move it elsewhere, or choose another --output"
        )
    # A resumed run replaces both at its end; an obstacle is better reported before training.
    check_replaceable(path / "model", "a model")
    check_replaceable(path / "eval" / "tasks", "held-out tasks")


def claim(path: Path, *, resume: bool, overwrite: bool) -> None:
    """Check ``path``, then create it for this run, or replace the run there with ``overwrite``."""
    check(path, resume=resume, overwrite=overwrite)
    with writing_to(path):
        if overwrite:
            with set_aside(path) as new_folder:
                new_folder.mkdir(parents=True)
        else:
            path.mkdir(parents=True, exist_ok=True)


def describe(
    path: Path, recipe: Training, facts: Mapping[str, Any], files: Mapping[str, str]
) -> None:
    """Write ``recipe.toml`` and ``files``; versions, hardware and ``facts`` into ``run.json``."""
    hardware = f"{platform.machine()} CPU ({torch.backends.cpu.get_cpu_capability()})"
    if torch.cuda.is_available():
        hardware = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    record = {
        "versions": versions_of(STACK),
        "python": platform.python_version(),
        "hardware": hardware,
        **facts,
    }
    # run.json is written first, since --resume and --overwrite recognise a run by it.
    write_json(path / "run.json", record)
    for name, text in files.items():
        (path / name).parent.mkdir(exist_ok=True)
        write_text(path / name, text)
    tables = recipe.model_dump(mode="json", exclude_none=True)
    write_text(path / "recipe.toml", tomli_w.dumps(tables))


def newest_checkpoint(
    path: Path, facts: Mapping[str, Any], *, allow_world_size_change: bool
) -> tuple[checkpoint.Checkpoint | None, list[str]]:
    """Return the checkpoint to continue from, and remarks for the user.

    Newer checkpoints that are damaged are set aside. Nothing is changed if an error is raised.

    Raises:
        UserError: recipe, data, model, world size, or the version of a loss, reader or pooling
            of another distribution differ from those of the run; or there are checkpoints, but
            none is undamaged or one cannot be read.
    """
    root = path / "checkpoints"
    newest, broken = checkpoint.newest(root)
    if newest is None:
        if broken:
            reasons = "; ".join(f"{error.folder.name}: {error.reason}" for error in broken)
            raise UserError(
                f"{root}: no checkpoint is whole ({reasons}): restore one from a "
                "backup, or begin anew with --overwrite or another --output; nothing was changed"
            )
        _refuse_changes(path, "run.json", _begun(path), facts)
        return None, ["no checkpoint yet: starting from step 0"]
    then, remarks = newest.facts, []
    if (before := then["world_size"]) != (ranks := facts["world_size"]):
        if not allow_world_size_change:
            effect = (
                "every rank reads batches of its own, so that steps will be made of other ones"
                if facts.get("batches_per_rank")
                else "the numbers will then agree only to rounding and with dropout off"
            )
            raise UserError(
                f"{path}: its checkpoint was made on {before} ranks, now there are {ranks}; "
                f"{effect}; pass --allow-world-size-change to accept that"
            )
        remarks.append(f"world size {before} -> {ranks}")
    _refuse_changes(path, "checkpoint", then, facts)
    if then["threads"] != facts["threads"]:
        remarks.append(
            f"{then['threads']} threads then, {facts['threads']} now: the numbers will agree only "
            "to rounding"
        )
    aside = [f"{error}; set aside as {checkpoint.set_aside(error.folder).name}" for error in broken]
    return newest, aside + remarks


def _begun(path: Path) -> Mapping[str, Any]:
    """Return the facts of a run that has no checkpoint yet, from its ``run.json``."""
    file = path / "run.json"
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        facts = {kind: record[kind] for kind in ("sources", "model")}
    except (ValueError, LookupError, TypeError):
        raise UserError(
            f"{file}: is damaged, and there is no checkpoint to go on from; begin anew with "
            "--overwrite or another --output"
        ) from None
    # Earlier versions stored the recipe in recipe.toml alone.
    facts["recipe"] = record.get("recipe") or read_toml(path / "recipe.toml")
    return facts | {"extensions": record.get("extensions", {})}


def _refuse_changes(
    path: Path, origin: str, then: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
    old, new = then["recipe"], now["recipe"]
    # With a constant rate no step depends on their number, so that a run may be extended.
    longer = (new["steps"] or 0) >= (old.get("steps") or 0)
    extended = longer and new["optim"]["schedule"] == "constant"
    inert = (*_INERT, "steps:") if extended else _INERT
    changes = differences(_completed(old), new)
    changes = [change for change in changes if not change.startswith(inert)]
    for kind in ("sources", "model"):
        before = {name: digest[:12] for name, digest in then[kind].items()}
        after = {name: digest[:12] for name, digest in now[kind].items()}
        changes += differences(before, after, kind)
    changes += differences(then.get("extensions", {}), now.get("extensions", {}), "extensions")
    if changes:
        raise UserError(
            f"{path}: this is another run than the one of its {origin}: "
            f"{'; '.join(changes)}; undo the change, or choose another --output"
        )


def _completed(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a stored recipe under current names, with the defaults of settings newer than it."""
    tables, _ = with_new_names(stored, "the run")
    try:
        return of_its_kind(tables, "the run").model_dump(mode="json")
    except UserError:
        # What this version does not read, it reports as a difference.
        return tables
