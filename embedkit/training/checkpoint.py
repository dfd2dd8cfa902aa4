"""Checkpoints: written whole or not at all, verified when read, the newest few kept."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from embedkit import distributed
from embedkit.distributed import sharding
from embedkit.errors import UserError
from embedkit.storage.atomic import sync, write_json
from embedkit.storage.hashing import sha256_of_file

_WEIGHTS = "model.safetensors"
_MOMENTS = "optimizer.safetensors"
_STATE = "state.json"
_HASHES = "sha256.json"
"""File with the SHA-256 hashes of all other files of a checkpoint."""
_NAME = re.compile(r"step-([0-9]{6}|[1-9][0-9]{6,})")
_ASIDE = "damaged-"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk: its folder, the steps done, and the facts stored beside the tensors."""

    folder: Path
    step: int
    facts: Mapping[str, Any]


class BrokenCheckpointError(UserError):
    """A checkpoint whose files are missing or differ from what was written."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(folder, reason)
        self.folder, self.reason = folder, reason

    def __str__(self) -> str:
        return f"{self.folder}: {self.reason}"


@dataclass(frozen=True, slots=True)
class State:
    """Unsharded tensors on the CPU: weights by name, optimizer moments by ``<name>/<moment>``.

    The format is the same for every number of ranks, sharded or not. Frozen parameters are left
    out: a resumed run loads them from the model it started from.
    """

    weights: Mapping[str, Tensor]
    moments: Mapping[str, Tensor]


def captured(model: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    """Return the state on rank 0, an empty one elsewhere. All ranks have to call this."""
    if sharding.is_sharded(model):
        weights, states = sharding.whole_state(model, optimizer)
    elif distributed.is_main():
        frozen = _frozen(model)
        kept = {name: t for name, t in model.state_dict().items() if name not in frozen}
        # Tied weights share memory, which safetensors refuses, so that every name gets a copy.
        weights = {name: tensor.cpu().clone() for name, tensor in kept.items()}
        states = {name: optimizer.state.get(p, {}) for name, p in model.named_parameters()}
    else:
        return State({}, {})
    moments = {f"{name}/{key}": t for name, state in states.items() for key, t in state.items()}
    return State(weights, {name: t.detach().cpu().contiguous() for name, t in moments.items()})


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the unsharded weights on rank 0, no weights elsewhere. All ranks have to call this."""
    weights = {name: sharding.whole(part).cpu() for name, part in model.state_dict().items()}
    return weights if distributed.is_main() else {}


def read_weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return the weights of a checkpoint by name."""
    return load_file(checkpoint.folder / _WEIGHTS)


def save(
    root: Path,
    step: int,
    state: State,
    facts: Mapping[str, Any],
    *,
    keep: int,
    best: int | None = None,
) -> Path:
    """Write a checkpoint after ``step`` steps, as ``root/step-000500``, and delete old ones.

    The newest ``keep`` checkpoints up to this step stay, this one included, and so does that of the
    step ``best``. All files are flushed
    to disk before the folder gets its name, so that a crash at any moment leaves either the whole
    checkpoint or none.
    """
    for left in root.glob(".step-*.tmp"):
        shutil.rmtree(left)
    final = folder_of(root, step)
    aside = root / f".{final.name}.tmp"
    aside.mkdir(parents=True)
    save_file(dict(state.weights), aside / _WEIGHTS)
    save_file(dict(state.moments), aside / _MOMENTS)
    write_json(aside / _STATE, {"step": step, "facts": facts})
    hashes = {path.name: sha256_of_file(path) for path in sorted(aside.iterdir())}
    write_json(aside / _HASHES, hashes)
    for path in [*aside.iterdir(), aside]:
        sync(path)
    if final.exists():
        set_aside(final)
    aside.rename(final)
    sync(root)
    folders = _folders(root)
    stays = None if best is None else folder_of(root, best)
    for old in folders[: folders.index(final) + 1][:-keep]:
        if old != stays:
            shutil.rmtree(old)
    return final


def folder_of(root: Path, step: int) -> Path:
    """Return the folder of the checkpoint after ``step`` steps."""
    return root / f"step-{step:06d}"


def newest(root: Path) -> tuple[Checkpoint | None, Sequence[BrokenCheckpointError]]:
    """Return the newest undamaged checkpoint under ``root`` and the errors of newer, damaged ones.

    If there is no undamaged one, the errors also list checkpoints that were set aside earlier.

    Raises:
        UserError: the folder or a checkpoint cannot be read.
    """
    broken: list[BrokenCheckpointError] = []
    with _readable(root):
        folders = _folders(root)
        aside = sorted(root.glob(f"{_ASIDE}step-*"))
    for folder in reversed(folders):
        try:
            return read(folder), broken
        except BrokenCheckpointError as error:
            broken.append(error)
    return None, [*broken, *(BrokenCheckpointError(folder, "was set aside") for folder in aside)]


def read(folder: Path) -> Checkpoint:
    """Verify a checkpoint without loading its tensors.

    Raises:
        BrokenCheckpointError: its files are missing or differ from what was written.
        UserError: it cannot be read, which does not mean that it is damaged.
    """
    with _readable(folder):
        try:
            present = {path.name for path in folder.iterdir()} - {_HASHES}
            hashes = None
            with suppress(ValueError):
                hashes = json.loads((folder / _HASHES).read_bytes())
            if not isinstance(hashes, dict):
                raise BrokenCheckpointError(folder, f"{_HASHES} is not a list of hashes")
            for name in sorted({_WEIGHTS, _MOMENTS, _STATE} | present | hashes.keys()):
                if name not in present:
                    raise BrokenCheckpointError(folder, f"{name} is missing")
                if name not in hashes:
                    raise BrokenCheckpointError(folder, f"{name} is not in {_HASHES}")
                if sha256_of_file(folder / name) != hashes[name]:
                    raise BrokenCheckpointError(folder, f"{name} does not match {_HASHES}")
            state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            reason = f"{Path(error.filename).name}: {error.strerror}"
            raise BrokenCheckpointError(folder, reason) from None
    return Checkpoint(folder, int(state["step"]), state["facts"])


def set_aside(folder: Path) -> Path:
    """Rename a damaged checkpoint, so that it is kept and its name is free; return its new path."""
    number = 1
    free = folder.with_name(f"{_ASIDE}{folder.name}")
    while free.exists():
        number += 1
        free = folder.with_name(f"{_ASIDE}{folder.name}-{number}")
    return folder.rename(free)


def restore(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load the checkpoint's weights and moments into a model and an optimizer of the same run.

    The model may be sharded or not, over any number of ranks, however it was when saved.
    """
    moments: dict[str, dict[str, Tensor]] = {}
    for full_name, tensor in load_file(checkpoint.folder / _MOMENTS).items():
        name, _, moment = full_name.rpartition("/")
        moments.setdefault(name, {})[moment] = tensor
    if sharding.is_sharded(model):
        sharding.restore(model, optimizer, read_weights(checkpoint), moments)
        return
    load_weights(checkpoint, model)
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    for name, values in moments.items():
        parameter = parameters[name]
        optimizer.state[parameter] = {key: t.to(parameter.device) for key, t in values.items()}


def load_weights(checkpoint: Checkpoint, model: nn.Module) -> None:
    """Load the checkpoint's weights alone into a model of the same run that is not sharded."""
    lacking, unknown = model.load_state_dict(read_weights(checkpoint), strict=False)
    assert set(lacking) == _frozen(model), lacking
    assert not unknown, unknown


def _frozen(model: nn.Module) -> set[str]:
    parameters = model.named_parameters(remove_duplicate=False)
    return {name for name, parameter in parameters if not parameter.requires_grad}


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn an ``OSError``, such as a lack of permission, into a UserError: it may not be damage."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{error.filename or path}: cannot be read ({error.strerror}); it need not be "
            "damaged, so nothing was changed: make it readable, and try again"
        ) from None


def _folders(root: Path) -> list[Path]:
    """Return the checkpoint folders under ``root`` in the order of their steps."""
    # ``iterdir``, since glob takes a folder without read permission for an empty one.
    paths = [path for path in root.iterdir() if _NAME.fullmatch(path.name)] if root.exists() else []
    return sorted(paths, key=lambda path: int(path.name.removeprefix("step-")))
