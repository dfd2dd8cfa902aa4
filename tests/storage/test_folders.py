"""What embedkit may replace: its own folders, as long as nothing in them is a user's."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.interrupted import start

from embedkit import api
from embedkit.errors import UserError
from embedkit.storage import cache
from embedkit.storage.folders import check_replaceable, rewrite, set_aside, whole_folder


def write(folder: Path, text: str) -> None:
    with whole_folder(folder, "a model") as aside:
        (aside / "part").mkdir()
        (aside / "part" / "weights").write_text(text)
        (aside / "README.md").write_text("card\n")


def content(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def written(tmp_path: Path) -> Path:
    write(tmp_path / "model", "old")
    return tmp_path / "model"


def edit_the_readme(folder: Path) -> None:
    (folder / "README.md").write_text("mine\n")


def add_a_file(folder: Path) -> None:
    (folder / "part" / "notes.txt").write_text("mine\n")


def add_a_link(folder: Path) -> None:
    (folder / "part" / "weights").rename(folder.parent / "weights")
    (folder / "part" / "weights").symlink_to(folder.parent / "weights")


def remove_the_marker(folder: Path) -> None:
    (folder / "embedkit.json").unlink()


def have_a_marker_of_ones_own(folder: Path) -> None:
    (folder / "embedkit.json").write_text('{"theme": "dark"}')


def break_the_marker(folder: Path) -> None:
    path = folder / "embedkit.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sha256": []}))


def add_four_files(folder: Path) -> None:
    for name in "abcd":
        (folder / name).write_text("mine\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edit_the_readme, r"or they were changed: README\.md; move them elsewhere, or choose"),
        (add_a_file, r"did not write these files, .*: part/notes\.txt; move them elsewhere"),
        (add_a_link, r"or they were changed: part/weights; move them elsewhere"),
        (add_four_files, "changed: a, b, c and 1 more; move them elsewhere"),
        (remove_the_marker, r"holds no embedkit\.json that .*; delete it yourself, or choose"),
        (break_the_marker, r"holds no embedkit\.json that marks it as written by emb"),
        (have_a_marker_of_ones_own, r"holds no embedkit\.json that marks it as written by emb"),
    ],
)
def test_what_a_user_has_put_into_a_folder_is_not_lost(
    change: Callable[[Path], None], message: str, written: Path
) -> None:
    change(written)
    before = content(written)
    with pytest.raises(UserError, match=message) as refused:
        write(written, "new")
    assert "\n" not in str(refused.value)
    assert content(written) == before
    assert {path.name for path in written.parent.iterdir()} <= {"model", "weights"}


def test_a_folder_of_another_kind_is_not_replaced(written: Path) -> None:
    with pytest.raises(UserError, match="since it holds a model and not mined pairs; choose anot"):
        check_replaceable(written, "mined pairs")


def test_a_missing_or_empty_folder_and_one_with_fewer_files_may_be_replaced(
    written: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    (written / "README.md").unlink()
    for folder in (tmp_path / "missing", tmp_path / "empty", written):
        write(folder, "new")
        assert content(folder)["part/weights"] == "new"
    assert {path.name for path in tmp_path.iterdir()} == {"missing", "empty", "model"}


def test_a_file_is_not_replaced_by_a_folder(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("mine")
    with pytest.raises(UserError, match="model: is a file; choose another --output"):
        write(tmp_path / "model", "new")
    assert (tmp_path / "model").read_text() == "mine"


def test_the_folder_behind_a_link_is_replaced(written: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(written)
    write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert content(written)["part/weights"] == "new"


def test_a_file_that_embedkit_writes_anew_still_counts_as_its_own(written: Path) -> None:
    rewrite(written, "README.md", "with scores\n")
    check_replaceable(written, "a model")
    assert (written / "README.md").read_text() == "with scores\n"
    (written / "README.md").write_text("mine\n")
    with pytest.raises(UserError, match=r"README\.md"):
        check_replaceable(written, "a model")


def test_the_marker_names_every_file_once(written: Path) -> None:
    marker = json.loads((written / "embedkit.json").read_text())
    assert marker["holds"] == "a model"
    assert marker["sha256"].keys() == {"part/weights", "README.md"}


def fail_in_its_place(folder: Path) -> None:
    with pytest.raises(OSError, match="no space"), set_aside(folder):
        raise OSError("no space left on device")


def test_a_folder_written_twice_at_once_is_never_a_mixture(tmp_path: Path) -> None:
    model = tmp_path / "model"
    with whole_folder(model, "a model") as first, whole_folder(model, "a model") as second:
        assert first != second
        # The second writer has taken the first for a killed one, and cleared its folder away.
        assert not first.exists()
        (second / "weights").write_text("second")
        first.mkdir()
        (first / "README.md").write_text("first")
        (first / "weights").write_text("first")
    assert content(model).keys() == {"README.md", "weights", "embedkit.json"}
    assert content(model)["weights"] == "first"


@pytest.mark.parametrize(("mask", "modes"), [(0o022, (0o755, 0o644)), (0o077, (0o700, 0o600))])
def test_a_folder_is_as_readable_as_the_user_wants(
    mask: int, modes: tuple[int, int], tmp_path: Path
) -> None:
    before = os.umask(mask)
    try:
        with whole_folder(tmp_path / "model", "a model") as aside:
            (aside / "part").mkdir()
            (aside / "part" / "weights").touch(0o600)
    finally:
        os.umask(before)
    paths = [tmp_path / "model", *(tmp_path / "model").rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in paths} == set(modes)


def test_a_new_folder_that_fails_leaves_the_old_one(written: Path) -> None:
    before = content(written)
    fail_in_its_place(written)
    assert content(written) == before
    assert [path.name for path in written.parent.iterdir()] == ["model"]


def write_and_die(folder: Path, function: tuple[Any, str], number: int) -> None:
    """Write ``folder``, and be killed before the call of ``function`` that has this number."""
    owner, name = function
    whole, calls = getattr(owner, name), 0

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(*args, **options)

    setattr(owner, name, counted)
    write(folder, "new")


# An older folder that a killed process has left is deleted first. The old folder is renamed, then
# the new one; at the end the old one is deleted.
@pytest.mark.parametrize(
    ("function", "number", "left"),
    [
        ((Path, "rename"), 1, "old"),
        ((Path, "rename"), 2, "old"),
        ((shutil, "rmtree"), 2, "new"),
    ],
)
def test_a_killed_replacement_is_undone_or_finished_by_the_next_one(
    function: tuple[Any, str], number: int, left: str, written: Path
) -> None:
    process = start(write_and_die, written, function, number)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    fail_in_its_place(written)
    assert content(written)["part/weights"] == left
    write(written, "newer")
    assert content(written)["part/weights"] == "newer"
    assert [path.name for path in written.parent.iterdir()] == ["model"]


@pytest.fixture(params=["below a file", "in /proc"])
def impossible(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder that not even root can make."""
    (tmp_path / "file").touch()
    return tmp_path / "file" / "x" if request.param == "below a file" else Path("/proc/x")


@pytest.mark.parametrize(
    "call",
    [
        lambda folder: api.export("starter", folder, to="onnx"),
        lambda folder: api.write_held_out_tasks("starter", folder),
        lambda folder: api.cluster("starter", folder),
        lambda folder: api.finetune("starter", folder),
        lambda folder: api.evaluate("starter", ["STS12"], folder),
    ],
    ids=["export", "data tasks", "cluster", "finetune", "eval-mteb"],
)
def test_an_output_that_cannot_be_made_is_refused_before_anything_is_read(
    call: Callable[[Path], object], impossible: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDKIT_DATA", "/nowhere")
    monkeypatch.setattr("embedkit.models.hub.load_tokenizer", pytest.fail)
    with pytest.raises(UserError, match=r"/x: cannot be written \(.*\); choose another --output$"):
        call(impossible)


def test_a_cache_that_cannot_be_made_is_refused_with_the_remedy(
    impossible: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDKIT_CACHE", str(impossible))
    told = r"/x/records: cannot be written \(.*\); set EMBEDKIT_CACHE to a folder that can be"
    with pytest.raises(UserError, match=told):
        cache.built("records", "key", lambda folder: None)
    with pytest.raises(UserError, match=told), cache.scratch("records"):
        pass
