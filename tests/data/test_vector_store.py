"""Surrogate vectors on disk."""

import os
import pickle
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.interrupted import start
from support.ranks import run_on_ranks

from embedkit import distributed
from embedkit.data import vector_store
from embedkit.data.pairs.records import Records
from embedkit.data.vector_store import VectorStore, store_vectors
from embedkit.errors import DataError
from embedkit.models import hub
from embedkit.models.embedder import Embedder


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_store, "_BLOCK", 4)


@pytest.fixture(scope="module")
def records() -> Records:
    rows = [{"query": f"word {number}", "positive": f"{number} birds"} for number in range(30)]
    return Records.from_rows(rows, name="birds", prompts={"query": "search: "})


@pytest.fixture(scope="module")
def surrogate(tiny_model: Path) -> Embedder:
    return hub.load(str(tiny_model))


def embed(records: Records, surrogate: Embedder, folder: Path) -> VectorStore:
    return store_vectors(records, surrogate.encode, folder, width=surrogate.width)


def test_every_pair_is_embedded_without_its_prompt(
    records: Records, surrogate: Embedder, tmp_path: Path
) -> None:
    store = embed(records, surrogate, tmp_path / "vectors")
    assert store.queries.dtype == np.float16
    expected = surrogate.encode([f"word {number}" for number in range(30)])
    np.testing.assert_allclose(store.queries, expected, atol=1e-3)
    expected = surrogate.encode([f"{number} birds" for number in range(30)])
    np.testing.assert_allclose(store.documents, expected, atol=1e-3)


def test_lines_show_progress_where_there_is_no_terminal(
    records: Records, surrogate: Embedder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    embed(records, surrogate, tmp_path / "vectors")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "embedding queries of birds: 30"
    assert lines[1:4] == [f"embedding queries of birds: {done}%" for done in (13, 27, 40)]
    assert lines[-1] == "embedding documents of birds: 100%"


def test_a_killed_run_goes_on_after_its_last_block(
    records: Records, surrogate: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = embed(records, surrogate, tmp_path / "whole")
    folder = tmp_path / "killed"
    process = start(_embed_until_killed, records, surrogate, folder, 11)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    # Each block of 4 texts is one call: all 8 of the queries are whole, and 3 of the documents.
    digests = {path.name: path.stat().st_size // 32 for path in folder.glob("*.digests-4")}
    assert digests == {"queries.f16.digests-4": 8, "documents.f16.digests-4": 3}
    with pytest.raises(DataError, match="the vectors are not whole"):
        VectorStore(folder)
    calls = _count_calls(surrogate, monkeypatch)
    store = embed(records, surrogate, folder)
    assert len(calls) == 5
    assert np.array_equal(store.queries, whole.queries)
    assert np.array_equal(store.documents, whole.documents)
    written = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    embed(records, surrogate, folder)
    assert len(calls) == 5
    # Nothing is written again: a whole store may lie where nothing can be written.
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == written


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize("damage", [flip, cut])
def test_a_damaged_block_is_embedded_again(
    damage: Callable[[Path], None],
    records: Records,
    surrogate: Embedder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = embed(records, surrogate, tmp_path / "whole")
    embed(records, surrogate, tmp_path / "vectors")
    for side in ("queries", "documents"):
        damage(tmp_path / "vectors" / f"{side}.f16")
    calls = _count_calls(surrogate, monkeypatch)
    with pytest.warns(UserWarning, match="1 of 8 blocks are damaged, so these are made again"):
        store = embed(records, surrogate, tmp_path / "vectors")
    assert len(calls) == 2
    assert np.array_equal(store.queries, whole.queries)
    assert np.array_equal(store.documents, whole.documents)


def test_vectors_without_digests_are_not_trusted(
    records: Records, surrogate: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed(records, surrogate, tmp_path / "vectors")
    (tmp_path / "vectors" / "queries.f16.digests-4").unlink()
    calls = _count_calls(surrogate, monkeypatch)
    embed(records, surrogate, tmp_path / "vectors")
    assert len(calls) == 8


def test_ranks_write_one_store_together(
    records: Records, surrogate: Embedder, tmp_path: Path
) -> None:
    alone = embed(records, surrogate, tmp_path / "alone")
    run_on_ranks(2, _embed_on_ranks, records, surrogate, tmp_path / "together")
    together = VectorStore(tmp_path / "together")
    assert np.array_equal(alone.queries, together.queries)
    assert np.array_equal(alone.documents, together.documents)
    shares = [(tmp_path / f"{rank}").read_text() for rank in range(2)]
    assert shares == ["8", "8"]


def test_a_store_pickles_as_its_place(
    records: Records, surrogate: Embedder, tmp_path: Path
) -> None:
    store = embed(records, surrogate, tmp_path / "vectors")
    data = pickle.dumps(store)
    assert len(data) < 500
    assert np.array_equal(pickle.loads(data).queries, store.queries)


def test_a_broken_store_says_how_to_mend_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not whole .*: remove the folder and run"):
        VectorStore(tmp_path)


def _embed_until_killed(records: Records, surrogate: Embedder, folder: Path, calls: int) -> None:
    encode = surrogate.encode
    made = []

    def counted(texts: Sequence[str], **options: Any) -> NDArray[np.float32]:
        made.append(len(texts))
        if len(made) > calls:
            os.kill(os.getpid(), signal.SIGKILL)
        return encode(texts, **options)

    surrogate.encode = counted  # type: ignore[method-assign]
    embed(records, surrogate, folder)


def _embed_on_ranks(records: Records, surrogate: Embedder, folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        calls = _count_calls(surrogate, patch)
        embed(records, surrogate, folder)
    (folder.parent / f"{distributed.rank()}").write_text(str(len(calls)))


def _count_calls(surrogate: Embedder, patch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    encode = surrogate.encode

    def counted(texts: Sequence[str], **options: Any) -> NDArray[np.float32]:
        calls.append(len(texts))
        return encode(texts, **options)

    patch.setattr(surrogate, "encode", counted)
    return calls
