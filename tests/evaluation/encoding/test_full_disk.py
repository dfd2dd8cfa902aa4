"""A cache whose disk is full or fails changes no vector, and says so once."""

import errno
import os
import resource
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.counting_encoder import Counting
from support.mteb_tasks import two_sts_tasks
from support.ranks import launcher_store

from embedkit.evaluation.encoding import encoders, vector_cache
from embedkit.evaluation.encoding.encoders import CachedEncoder
from embedkit.evaluation.encoding.vector_cache import VectorCache, keys_of
from embedkit.evaluation.mteb.scoring import evaluate
from embedkit.storage import blocks

TEXTS = [f"text {number}" for number in range(2000)]


@pytest.fixture(autouse=True)
def _many_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "_ROUND_TOKENS", 500)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def check(folder: Path, reason: str) -> VectorCache:
    """Encode through a cache whose disk is about to fail, and return the cache."""
    expected = Counting().encode(TEXTS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cache = VectorCache(folder, 10**9)
        for _ in range(2):
            assert np.array_equal(CachedEncoder(Counting(), cache).encode(TEXTS), expected)
    told = [str(warning.message) for warning in caught]
    assert told == [f"{folder}: {reason}, so vectors are no longer kept"]
    return cache


def test_a_full_disk_is_told_once_and_all_tasks_are_scored(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_cache, "_SPARE", 0)
    cache = check(small_disk / "vectors", "No space left on device")
    tasks = two_sts_tasks(tmp_path / "tasks")
    summary = evaluate(CachedEncoder(Counting(), cache), tasks, tmp_path / "out")
    assert summary.coverage == "2 of 2 tasks"


def test_a_write_that_fails_is_told_once(tmp_path: Path) -> None:
    process = get_context("fork").Process(target=check_limit, args=(tmp_path,))
    process.start()
    process.join(60)
    assert process.exitcode == 0


def check_limit(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
    check(folder / "vectors", "File too large")


def test_what_lies_before_a_torn_write_is_found_while_the_disk_is_full(tmp_path: Path) -> None:
    process = get_context("fork").Process(target=check_torn, args=(tmp_path,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    # With room again, what the write has torn is replaced.
    cache, keys = VectorCache(tmp_path, 10**9), keys_of(TEXTS[:768])
    cache.keep("model", "", keys[512:], np.full((256, 1), 2, np.float32))
    found, vectors = cache.find("model", "", keys)
    assert found.all()
    assert vectors[:, 0].tolist() == np.repeat([0.0, 1.0, 2.0], 256).tolist()


def check_torn(folder: Path) -> None:
    # Two blocks of keys of 4,096 bytes fit, and a part of the third.
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    cache, keys = VectorCache(folder, 10**9), keys_of(TEXTS[:768])
    for block in range(2):
        rows = slice(256 * block, 256 * block + 256)
        cache.keep("model", "", keys[rows], np.full((256, 1), block, np.float32))
    with pytest.warns(UserWarning, match="File too large, so vectors are no longer kept"):
        cache.keep("model", "", keys[512:], np.full((256, 1), 2, np.float32))
    (path,) = folder.glob("*.texts/keys")
    assert path.stat().st_size == 10_000
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for each in (cache, VectorCache(folder, 10**9)):
            assert each.find("model", "", keys)[0].tolist() == [True] * 512 + [False] * 256


def test_a_damaged_block_is_not_found_where_that_cannot_be_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, keys = VectorCache(tmp_path, 10**9), keys_of(TEXTS[:512])
    cache.keep("model", "", keys, np.ones((512, 1), np.float32))
    (path,) = tmp_path.glob("*.texts/1.vectors")
    with path.open("r+b") as file:
        file.write(b"damage")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(blocks, "_put", full)
    with pytest.warns(UserWarning, match="1 blocks are damaged") as told:
        found = [cache.find("model", "", keys)[0].tolist() for _ in range(2)]
    assert found == 2 * [[False] * 256 + [True] * 256]
    assert len(told) == 1


def test_room_is_left_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_cache, "_SPARE", 2**60)
    check(tmp_path / "vectors", "No space left on device")
    assert [path.name for path in (tmp_path / "vectors").iterdir()] == [".lock"]


def test_what_was_used_long_ago_makes_room_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = VectorCache(tmp_path, 10**9)
    old, new = CachedEncoder(Counting(), cache), CachedEncoder(Counting(), cache)
    old.encode(TEXTS[:500], prompt="old: ")
    no_more_room = SimpleNamespace(free=vector_cache._SPARE)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: no_more_room)
    new.encode(TEXTS[:20], prompt="new: ")
    assert len(list(tmp_path.glob("*.texts"))) == 1
    assert cache.find("counting", "old: ", keys_of(TEXTS[:1]))[0].tolist() == [False]


def test_ranks_with_one_cache_tell_of_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("WORLD_SIZE", "3")
    with launcher_store(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rank in range(3):
            monkeypatch.setenv("RANK", str(rank))
            VectorCache(tmp_path / "file" / "vectors", 10**9)
    assert [str(warning.message).partition("vectors")[2] for warning in caught] == [
        ": Not a directory, so vectors are no longer kept"
    ]
