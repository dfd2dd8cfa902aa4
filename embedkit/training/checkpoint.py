"""Checkpoints: written whole or not at all, verified when read, the newest few kept."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from embedkit import distributed
from embedkit.distributed import sharding
from embedkit.errors import UserError

_STATE = "state.json"
_HASHES = "sha256.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk: its folder, the steps done, and the facts stored beside the tensors."""

    folder: Path
    step: int
    facts: Mapping[str, Any]


class BrokenCheckpointError(UserError):
    """A checkpoint whose files are not those that were written."""


@dataclass(frozen=True, slots=True)
class State:
    """Whole tensors on the CPU: weights by name, moments by ``<name>/<moment>``.

    One format for every number of ranks, sharded or not. Frozen parameters are not in it: they are
    what the run was given.
    """

    weights: Mapping[str, Tensor]
    moments: Mapping[str, Tensor]


def captured(model: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    """The state of a model and its optimizer, on rank 0; empty elsewhere. All ranks have to ask."""
    if sharding.is_sharded(model):
        weights, moments = sharding.whole_state(model, optimizer)
        return State(
            weights,
            {f"{name}/{moment}": t for name, own in moments.items() for moment, t in own.items()},
        )
    if not distributed.is_main():
        return State({}, {})
    return State(_weights(model), _moments(model, optimizer))


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a model that may be sharded, on rank 0; empty elsewhere. All have to ask."""
    parts = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    weights = {name: sharding.whole(each).cpu() for name, each in parts.items()}
    return weights if distributed.is_main() else {}


def read_weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The weights of a checkpoint by name."""
    return load_file(checkpoint.folder / "model.safetensors")


def save(
    root: Path,
    step: int,
    state: State,
    facts: Mapping[str, Any],
    *,
    keep: int,
) -> Path:
    """Write ``root/step-000500`` after ``step`` steps, then drop all but the newest ``keep``.

    Everything is on the disk before the folder gets its name, so that a crash at any moment leaves
    either the whole checkpoint or none. Checkpoints of later steps are dropped too: they were
    broken, or the run would have gone on from them.
    """
    for left in root.glob(".step-*.tmp"):
        shutil.rmtree(left)
    final = root / f"step-{step:06d}"
    aside = root / f".{final.name}.tmp"
    aside.mkdir(parents=True)
    save_file(dict(state.weights), aside / "model.safetensors")
    save_file(dict(state.moments), aside / "optimizer.safetensors")
    _write_json(aside / _STATE, {"step": step, "facts": facts})
    _write_json(aside / _HASHES, {path.name: _sha256(path) for path in sorted(aside.iterdir())})
    for path in [*aside.iterdir(), aside]:
        _fsync(path)
    if final.exists():
        shutil.rmtree(final)
    aside.rename(final)
    _fsync(root)
    folders = _folders(root)
    newest = folders.index(final)
    for other in folders[: max(0, newest + 1 - keep)] + folders[newest + 1 :]:
        shutil.rmtree(other)
    return final


def newest(root: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint under ``root``, and a line for each broken one passed over."""
    broken: list[str] = []
    for folder in reversed(_folders(root)):
        try:
            return read(folder), broken
        except BrokenCheckpointError as error:
            broken.append(str(error))
    return None, broken


def read(folder: Path) -> Checkpoint:
    """Verify a checkpoint without loading its tensors.

    Raises:
        BrokenCheckpointError: a file is missing or differs from what was written.
    """
    try:
        hashes = json.loads((folder / _HASHES).read_text(encoding="utf-8"))
        for name, expected in hashes.items():
            if _sha256(folder / name) != expected:
                raise BrokenCheckpointError(
                    f"{folder}: {name} differs from what was written; delete it"
                )
        state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        return Checkpoint(folder, int(state["step"]), state["facts"])
    except (OSError, ValueError) as error:
        if isinstance(error, BrokenCheckpointError):
            raise
        raise BrokenCheckpointError(f"{folder}: is not whole ({error}); delete it") from None


def restore(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put the checkpoint's weights and moments into a model and an optimizer of the same run.

    Each may be sharded, over whatever number of ranks, or not.
    """
    weights = load_file(checkpoint.folder / "model.safetensors")
    moments: dict[str, dict[str, Tensor]] = {}
    for full_name, tensor in load_file(checkpoint.folder / "optimizer.safetensors").items():
        name, _, moment = full_name.rpartition("/")
        moments.setdefault(name, {})[moment] = tensor
    if sharding.is_sharded(model):
        sharding.restore(model, optimizer, weights, moments)
        return
    lacking, unknown = model.load_state_dict(weights, strict=False)
    assert set(lacking) == _frozen(model), lacking
    assert not unknown, unknown
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    for name, values in moments.items():
        parameter = parameters[name]
        optimizer.state[parameter] = {
            moment: tensor.to(parameter.device) for moment, tensor in values.items()
        }


def _weights(model: nn.Module) -> dict[str, Tensor]:
    # Tied weights share memory, which safetensors refuses; each name gets its own copy.
    frozen = _frozen(model)
    return {
        name: tensor.detach().cpu().clone()
        for name, tensor in model.state_dict().items()
        if name not in frozen
    }


def _frozen(model: nn.Module) -> set[str]:
    parameters = model.named_parameters(remove_duplicate=False)
    return {name for name, parameter in parameters if not parameter.requires_grad}


def _moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{moment}": tensor.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        for moment, tensor in optimizer.state.get(parameter, {}).items()
    }


def _folders(root: Path) -> list[Path]:
    return sorted(root.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
