import time
import warnings
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread

import pytest
from support.hub_sets import FIXTURES, write_data_set
from support.small_runs import write_source

from embedkit.data.pairs.open_all import open_all
from embedkit.errors import DataError, UserError
from embedkit.storage import cache

ROWS = {"ten": 10, "twelve": 12, "three": 3}


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, int]:
    """The manifests of ``ROWS``, none of them in the cache."""
    return {str(write_source(tmp_path, name, rows, 0)): rows for name, rows in ROWS.items()}


def absent(folder: Path) -> str:
    path = folder / "absent.toml"
    path.write_text('source = { kind = "files", files = [{ path = "nowhere.jsonl" }] }')
    return str(path)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_every_source_is_opened_and_cached(sources: dict[str, int], workers: int) -> None:
    assert dict(open_all([*sources], workers)) == sources
    tables = list((cache.root() / "records").glob("*/train.arrow"))
    assert len(tables) == len(sources)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_failure_names_its_source(sources: dict[str, int], workers: int, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent: nowhere\.jsonl: no such file"):
        list(open_all([*sources, absent(tmp_path)], workers))


def test_so_does_one_of_the_system(
    sources: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EMBEDKIT_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"/file/records: cannot be written") as raised:
        list(open_all([*sources], workers=1))
    assert "ten.toml" in "".join(raised.value.__notes__)


@pytest.mark.slow
def test_a_process_that_is_killed_is_told_of(sources: dict[str, int]) -> None:
    killer = Thread(target=kill_one, args=(set(active_children()),))
    killer.start()
    with pytest.raises(DataError, match=r"the process that opened it was killed.*--workers"):
        list(open_all([*sources], workers=2))
    killer.join()


def kill_one(others: set[BaseProcess]) -> None:
    """Kill a process of the pool while it still imports what it needs."""
    while True:
        for child in set(active_children()) - others:
            child.kill()
            return
        time.sleep(0.02)


@pytest.mark.slow
def test_warnings_of_other_processes_are_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDKIT_HUB", str(tmp_path))
    for id_ in FIXTURES:
        write_data_set(tmp_path, id_)

    def heard(workers: int) -> set[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            assert len(list(open_all(["gooaq", "npr"], workers))) == 2
        return {str(each.message) for each in caught}

    assert heard(2) == heard(1)
    assert any("npr" in each for each in heard(1))
