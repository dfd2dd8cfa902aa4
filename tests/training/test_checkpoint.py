import json
import os
import signal
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import nn

from embedkit.errors import UserError
from embedkit.recipe import Optim
from embedkit.training import checkpoint
from embedkit.training.checkpoint import BrokenCheckpointError
from embedkit.training.optim import build_optimizer

FILES = ["model.safetensors", "optimizer.safetensors", "sha256.json", "state.json"]


class Tied(nn.Module):
    """Its two layers share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight


def trained(steps: int = 2, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model after a few steps, with moments."""
    torch.manual_seed(seed)
    model = Tied()
    optimizer = build_optimizer(model, Optim(lr=0.1))
    for _ in range(steps):
        optimizer.zero_grad()
        model.second(model.first(torch.randn(4, 3))).square().sum().backward()
        optimizer.step()
    return model, optimizer


def save(root: Path, step: int, *, keep: int = 2) -> Path:
    return checkpoint.save(root, step, checkpoint.captured(*trained()), {"seed": 7}, keep=keep)


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_a_frozen_parameter_stays_what_the_run_was_given(tmp_path: Path) -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    for each in (model, other):
        each.weight.requires_grad_(False)
    given = other.weight.clone()
    optimizers = [build_optimizer(each, Optim(lr=0.1)) for each in (model, other)]
    model(torch.ones(1, 2)).sum().backward()
    optimizers[0].step()
    state = checkpoint.captured(model, optimizers[0])
    assert state.weights.keys() == {"bias"}
    checkpoint.restore(
        checkpoint.read(checkpoint.save(tmp_path, 1, state, {}, keep=1)), other, optimizers[1]
    )
    assert torch.equal(other.weight, given)
    assert torch.equal(other.bias, model.bias)


def test_weights_and_moments_come_back(tmp_path: Path) -> None:
    model, optimizer = trained()
    checkpoint.save(tmp_path, 3, checkpoint.captured(model, optimizer), {"seed": 7}, keep=1)
    found, broken = checkpoint.newest(tmp_path)
    assert found is not None
    assert (found.step, found.facts, broken) == (3, {"seed": 7}, [])
    other, other_optimizer = trained(steps=1, seed=5)
    checkpoint.restore(found, other, other_optimizer)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
        assert optimizer.state[one].keys() == {"step", "exp_avg", "exp_avg_sq"}
        for moment, expected in optimizer.state[one].items():
            assert torch.equal(other_optimizer.state[two][moment], expected)


def test_weights_that_were_tied_stay_tied(tmp_path: Path) -> None:
    save(tmp_path, 1)
    model, optimizer = trained(seed=5)
    assert isinstance(model, Tied)
    found = checkpoint.newest(tmp_path)[0]
    assert found is not None
    checkpoint.restore(found, model, optimizer)
    assert model.second.weight is model.first.weight


def test_a_model_before_its_first_step_has_no_moments(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, checkpoint.captured(*trained(steps=0)), {}, keep=1)
    model, optimizer = trained()
    checkpoint.restore(checkpoint.read(tmp_path / "step-000001"), model, optimizer)
    assert not optimizer.state


def test_equal_states_make_equal_files(tmp_path: Path) -> None:
    for folder in (tmp_path / "one", tmp_path / "two"):
        save(folder, 1)
    for file in FILES:
        one, two = (tmp_path / name / "step-000001" / file for name in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize(("keep", "kept"), [(1, [30]), (2, [20, 30]), (9, [5, 10, 20, 30])])
def test_the_newest_few_are_kept(keep: int, kept: list[int], tmp_path: Path) -> None:
    for step in (5, 10, 20, 30):
        save(tmp_path, step, keep=keep)
    assert names(tmp_path) == [f"step-{step:06d}" for step in kept]


def test_the_newest_is_that_of_most_steps_whatever_the_number_of_digits(tmp_path: Path) -> None:
    for step in (999_999, 1_000_000):
        save(tmp_path, step)
    found, _ = checkpoint.newest(tmp_path)
    assert found is not None
    assert found.step == 1_000_000


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, empty, flip, Path.unlink])
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_checkpoint_is_passed_over(
    file: str, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    damage(newest / file)
    found, broken = checkpoint.newest(tmp_path)
    assert found is not None
    assert found.step == 1
    assert [each.folder for each in broken] == [newest]
    assert file in broken[0].reason
    with pytest.raises(BrokenCheckpointError):
        checkpoint.read(newest)


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_file_without_a_hash_is_damage(file: str, tmp_path: Path) -> None:
    folder = save(tmp_path, 1)
    hashes = json.loads((folder / "sha256.json").read_text())
    del hashes[file]
    (folder / "sha256.json").write_text(json.dumps(hashes))
    with pytest.raises(BrokenCheckpointError, match=rf"{file} is not in sha256\.json"):
        checkpoint.read(folder)
    (folder / file).unlink()
    with pytest.raises(BrokenCheckpointError, match=f"{file} is missing"):
        checkpoint.read(folder)


def test_a_file_that_was_not_written_and_a_hash_without_a_file_are_damage(tmp_path: Path) -> None:
    folder = save(tmp_path, 1)
    (folder / "notes.txt").touch()
    with pytest.raises(BrokenCheckpointError, match=r"notes\.txt is not in sha256\.json"):
        checkpoint.read(folder)
    (folder / "notes.txt").unlink()
    hashes = json.loads((folder / "sha256.json").read_text())
    (folder / "sha256.json").write_text(json.dumps({**hashes, "another": "0"}))
    with pytest.raises(BrokenCheckpointError, match="another is missing"):
        checkpoint.read(folder)


@pytest.mark.parametrize("content", ["[]", "null", "7", "{", '{"model.safetensors": 7}', "\0\xff"])
def test_what_is_no_list_of_hashes_is_damage(content: str, tmp_path: Path) -> None:
    (save(tmp_path, 1) / "sha256.json").write_bytes(content.encode("latin-1"))
    found, broken = checkpoint.newest(tmp_path)
    assert found is None
    assert len(broken) == 1


def test_a_file_in_the_place_of_a_checkpoint_is_damage(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "step-000002").touch()
    found, broken = checkpoint.newest(tmp_path)
    assert found is not None
    assert found.step == 1
    assert [each.reason for each in broken] == ["step-000002: Not a directory"]


def test_names_that_are_not_a_checkpoints_are_ignored(tmp_path: Path) -> None:
    foreign = ["notes.txt", "step-000009.bak", "step-12", "step-12.bak", "step-old"]
    foreign += ["step-0000012", "step-\u0663\u0663\u0663\u0663\u0663\u0663"]
    for name in foreign:
        (tmp_path / name).mkdir()
    assert checkpoint.newest(tmp_path) == (None, [])
    for step in (1, 2):
        save(tmp_path, step, keep=1)
    found, broken = checkpoint.newest(tmp_path)
    assert found is not None
    assert (found.step, broken) == (2, [])
    assert names(tmp_path) == sorted([*foreign, "step-000002"])


def test_a_checkpoint_that_the_disk_cannot_read_is_not_called_damaged(tmp_path: Path) -> None:
    save(tmp_path, 1)
    weights = save(tmp_path, 2) / "model.safetensors"
    weights.unlink()
    # Reading the first byte of its own memory, which is not mapped, a process gets EIO.
    weights.symlink_to("/proc/self/mem")
    with pytest.raises(UserError, match=r"step-000002.*: cannot be read \(Input/output error\)"):
        checkpoint.newest(tmp_path)


@pytest.mark.parametrize("place", [".", "step-000002", "step-000002/model.safetensors"])
def test_a_checkpoint_that_may_not_be_read_is_not_called_damaged(place: str) -> None:
    # Not under ``tmp_path``, whose parents another user may not enter.
    with TemporaryDirectory() as folder:
        root = Path(folder) / "checkpoints"
        for step in (1, 2):
            save(root, step)
        for path in (root.parent, *root.parent.rglob("*")):
            path.chmod(0o755)
        (root / place).chmod(0)
        try:
            process = get_context("fork").Process(target=be_refused, args=(root, place))
            process.start()
            process.join(20)
            assert process.exitcode == 0
        finally:
            (root / place).chmod(0o755)
        assert names(root) == ["step-000001", "step-000002"]


def be_refused(root: Path, place: str) -> None:
    if os.geteuid() == 0:
        # The superuser may read everything.
        os.seteuid(65534)
    with pytest.raises(UserError, match=r"cannot be read \(Permission denied\)") as refusal:
        checkpoint.newest(root)
    assert str(root / place) in str(refusal.value)


def test_a_checkpoint_that_is_set_aside_is_kept_and_not_counted(tmp_path: Path) -> None:
    save(tmp_path, 1)
    for aside in ("damaged-step-000002", "damaged-step-000002-2"):
        damaged = save(tmp_path, 2)
        cut(damaged / "model.safetensors")
        content = (damaged / "model.safetensors").read_bytes()
        assert checkpoint.set_aside(damaged) == tmp_path / aside
        assert (tmp_path / aside / "model.safetensors").read_bytes() == content
    for step in (2, 3):
        save(tmp_path, step, keep=2)
    found, broken = checkpoint.newest(tmp_path)
    assert found is not None
    assert (found.step, broken) == (3, [])
    kept = ["damaged-step-000002", "damaged-step-000002-2", "step-000002", "step-000003"]
    assert names(tmp_path) == kept


def test_what_was_set_aside_is_told_of_where_nothing_is_whole(tmp_path: Path) -> None:
    checkpoint.set_aside(save(tmp_path, 1))
    found, broken = checkpoint.newest(tmp_path)
    assert found is None
    assert [str(each) for each in broken] == [f"{tmp_path}/damaged-step-000001: was set aside"]


def test_there_may_be_none(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path / "nowhere") == (None, [])


def test_a_broken_checkpoint_costs_no_whole_one_its_place(tmp_path: Path) -> None:
    cut(save(tmp_path, 10) / "model.safetensors")
    for step in (6, 7):
        save(tmp_path, step, keep=1)
    assert names(tmp_path) == ["step-000007", "step-000010"]


def test_a_step_saved_again_sets_aside_what_was_there(tmp_path: Path) -> None:
    cut(save(tmp_path, 1) / "model.safetensors")
    save(tmp_path, 1)
    assert checkpoint.newest(tmp_path)[1] == []
    assert names(tmp_path) == ["damaged-step-000001", "step-000001"]


@pytest.mark.parametrize(
    "place", ["captured", "save_file", "sha256_of_file", "sync", "write_json", "Path.rename"]
)
def test_a_run_killed_while_it_saves_leaves_the_checkpoint_before(
    place: str, tmp_path: Path
) -> None:
    save(tmp_path, 1)
    process = get_context("fork").Process(target=save_and_die, args=(tmp_path, place))
    process.start()
    process.join(20)
    assert process.exitcode == -signal.SIGKILL
    found, broken = checkpoint.newest(tmp_path)
    assert found is not None
    assert (found.step, broken) == (1, [])
    save(tmp_path, 3, keep=5)
    assert names(tmp_path) == ["step-000001", "step-000003"]


def save_and_die(root: Path, place: str) -> None:
    def die(*_args: object, **_options: object) -> None:
        signal.raise_signal(signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"embedkit.training.checkpoint.{place}", die)
        save(root, 2)


def test_nothing_is_named_before_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    rename = Path.rename

    def rename_and_check(self: Path, target: Path) -> Path:
        assert set(synced) == {*FILES, self.name}
        return rename(self, target)

    monkeypatch.setattr(checkpoint, "sync", lambda path: synced.append(path.name))
    monkeypatch.setattr(Path, "rename", rename_and_check)
    save(tmp_path, 1)
    assert synced[-1] == tmp_path.name


def test_the_state_says_what_was_written(tmp_path: Path) -> None:
    state = json.loads((save(tmp_path, 4) / "state.json").read_text())
    assert state == {"step": 4, "facts": {"seed": 7}}
