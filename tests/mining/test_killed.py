"""A process that is killed leaves its work to the next, which ends with the same bytes."""

import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.interrupted import start

from embedkit.data.pairs.records import Records
from embedkit.mining import candidates, mine_source, stored_vectors
from embedkit.mining.mine_source import mine
from embedkit.mining.mined_source import OutputFolder
from embedkit.storage import blocks

ROWS = [{"query": f"question {n}", "positive": f"answer {n * 7 % 11} {n}"} for n in range(11)]
SETTINGS: dict[str, Any] = {"negatives": 2, "depth": 5, "margin_kind": "none", "sampling": "random"}


def small_blocks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stored_vectors, "_TEXTS", 4)
    patch.setattr(candidates, "_QUERIES", 4)


@pytest.fixture(autouse=True)
def _several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(number: int, function: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
    """``function``, at whose call of that number the process is killed."""
    calls = 0

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and not after:
            die()
        result = function(*args, **options)
        if calls == number:
            die()
        return result

    return counted


def mine_and_die(
    where: tuple[Any, str], number: int, after: bool, model: Path, output: Path
) -> None:
    owner, name = where
    setattr(owner, name, at_call(number, getattr(owner, name), after=after))
    mine(Records.from_rows(ROWS), model, output, dtype="fp32", **SETTINGS)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all outputs go, since a manifest names its place."""
    return tmp_path_factory.mktemp("killed")


@pytest.fixture(scope="module")
def unbroken(place: Path, tiny_model: Path) -> dict[str, bytes]:
    """What a process writes that nobody kills."""
    with pytest.MonkeyPatch.context() as patch:
        small_blocks(patch)
        mine(Records.from_rows(ROWS), tiny_model, place / "mined", dtype="fp32", **SETTINGS)
    return content(place / "mined")


# Blocks are two writes each: three blocks of queries, of documents and of candidates.
WRITES = [((blocks, "_put"), number, False) for number in (1, 4, 8, 14, 18)]
# Renamed are the rows in the cache, the vectors of either side, and the result.
LATER = [
    ((mine_source, "write_pairs"), 1, True),
    ((Path, "rename"), 3, False),
    ((Path, "rename"), 3, True),
    ((Path, "rename"), 4, False),
    ((Path, "rename"), 4, True),
    ((OutputFolder, "_clear"), 2, True),
]


@pytest.mark.parametrize(("where", "number", "after"), [*WRITES, *LATER])
@pytest.mark.slow
def test_a_killed_process_is_continued_to_the_same_bytes(
    where: tuple[Any, str],
    number: int,
    after: bool,
    place: Path,
    unbroken: dict[str, bytes],
    tiny_model: Path,
) -> None:
    output = place / "mined"
    # A test that failed may have left none.
    shutil.rmtree(output, ignore_errors=True)
    process = start(mine_and_die, where, number, after, tiny_model, output)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not output.exists() or content(output) == unbroken
    mine(Records.from_rows(ROWS), tiny_model, output, dtype="fp32", **SETTINGS)
    assert content(output) == unbroken
    assert {path.name for path in place.iterdir()} == {"mined"}


def test_the_work_of_a_killed_process_is_not_taken_up_with_other_settings(
    tiny_model: Path, tmp_path: Path
) -> None:
    output = tmp_path / "mined"
    process = start(mine_and_die, (mine_source, "write_pairs"), 1, True, tiny_model, output)
    process.join()
    run = partial(mine, Records.from_rows(ROWS), tiny_model, dtype="fp32")
    other = SETTINGS | {"depth": 4}
    with pytest.raises(ValueError, match=r"was begun otherwise \(settings.depth: 5 -> 4\)"):
        run(output, **other)
    run(output, overwrite=True, **other)
    run(tmp_path / "fresh", **other)
    assert content(output)["mined.parquet"] == content(tmp_path / "fresh")["fresh.parquet"]
    assert {path.name for path in tmp_path.iterdir()} == {"mined", "fresh"}
