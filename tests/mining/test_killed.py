"""A process that is killed leaves its work to the next, which ends with the same bytes."""

import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from breaking import start

from embedkit.data.records import Records
from embedkit.mining import blocks, candidates, mining, vectors
from embedkit.mining.mining import mine

ROWS = [{"query": f"question {n}", "positive": f"answer {n * 7 % 11} {n}"} for n in range(11)]
SETTINGS: dict[str, Any] = {"negatives": 2, "depth": 5, "margin_kind": "none", "sampling": "random"}


@pytest.fixture(autouse=True)
def _several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "_TEXTS", 4)
    monkeypatch.setattr(candidates, "_QUERIES", 4)


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


# Blocks are two writes each: three blocks of queries, of documents and of candidates.
WRITES = [((blocks, "_append"), number, False) for number in (1, 2, 4, 8, 13, 14, 18)]
LATER = [
    ((mining, "write_pairs"), 1, True),
    ((mining, "write_manifest"), 1, False),
    ((Path, "rename"), 3, False),
    ((Path, "rename"), 3, True),
]


@pytest.mark.parametrize(("where", "number", "after"), [*WRITES, *LATER])
def test_a_killed_process_is_continued_to_the_same_bytes(
    where: tuple[Any, str],
    number: int,
    after: bool,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = tmp_path / "mined"
    run = partial(mine, Records.from_rows(ROWS), tiny_model, output, dtype="fp32", **SETTINGS)
    monkeypatch.setenv("EMBEDKIT_CACHE", str(tmp_path / "unbroken"))
    run()
    expected = content(output)
    shutil.rmtree(output)

    monkeypatch.setenv("EMBEDKIT_CACHE", str(tmp_path / "broken"))
    process = start(mine_and_die, where, number, after, tiny_model, output)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not output.exists() or content(output) == expected
    run()
    assert content(output) == expected
    assert {path.name for path in tmp_path.iterdir()} <= {"mined", "unbroken", "broken"}


def test_the_work_of_a_killed_process_is_not_taken_up_with_other_settings(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "mined"
    process = start(mine_and_die, (mining, "write_pairs"), 1, True, tiny_model, output)
    process.join()
    run = partial(mine, Records.from_rows(ROWS), tiny_model, output, dtype="fp32")
    with pytest.raises(ValueError, match=r"was begun otherwise \(settings.seed: 0 -> 1\)"):
        run(**SETTINGS, seed=1)
    run(**SETTINGS, seed=1, overwrite=True)
    assert not (tmp_path / ".mined.mining").exists()
