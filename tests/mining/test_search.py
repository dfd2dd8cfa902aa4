import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.searches import assert_best, unit

from embedkit.data import exact_search
from embedkit.data.exact_search import ExactSearch
from embedkit.mining import search
from embedkit.mining.search import IvfSearch, faiss_best, torch_best
from embedkit.mining.settings import MiningSettings

CPU = torch.device("cpu")


@pytest.mark.parametrize("at_a_time", [100, 2**25])
def test_flat_faiss_agrees_with_torch(at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setitem(exact_search._SCORES, "cpu", at_a_time)
    queries, documents = unit(5, seed=1), unit(50)
    flat = ExactSearch(documents, CPU, faiss_best(CPU))
    assert_best(flat, queries, documents, 7)
    by_torch = ExactSearch(documents, CPU, torch_best).top(queries, 7)
    np.testing.assert_array_equal(flat.top(queries, 7)[1], by_torch[1])


def inverted(folder: Path, documents: NDArray[Any], **options: Any) -> IvfSearch:
    pytest.importorskip("faiss")
    settings = MiningSettings(search="faiss-ivf", **({"lists": 10, "probes": 10} | options))
    return IvfSearch(documents, folder, settings, CPU)


@pytest.mark.parametrize("bytes_at_a_time", [2**28, 3000])
def test_an_inverted_file_of_which_all_lists_are_read_is_exact(
    bytes_at_a_time: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr(search, "_BLOCK_BYTES", bytes_at_a_time)
    queries, documents = unit(5, seed=1), unit(400)
    assert_best(inverted(tmp_path / "index", documents), queries, documents, 7)


def test_an_inverted_file_of_which_one_list_is_read_finds_less(tmp_path: Path) -> None:
    documents = unit(400)
    few = inverted(tmp_path / "index", documents, probes=1)
    assert (few.top(unit(5, seed=1), 400)[1] == -1).any()


def test_an_index_goes_on_where_it_was_left(tmp_path: Path) -> None:
    documents = unit(400)
    inverted(tmp_path / "index", documents)
    expected = {
        path.name: path.read_bytes()
        for path in (tmp_path / "index").iterdir()
        if path.name != "whole.index"  # which holds the place of the lists
    }
    trained = (tmp_path / "index" / "trained.index").read_bytes()
    other = tmp_path / "other"
    other.mkdir()
    (other / "trained.index").write_bytes(trained)
    (other / ".0.index.part").write_bytes(b"torn")
    inverted(other, documents)
    assert {name: (other / name).read_bytes() for name in expected} == expected


def test_nothing_is_said_on_standard_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # faiss says so in C, whose own buffer is emptied when it likes.
    libc = ctypes.CDLL(None)
    inverted(tmp_path / "index", unit(400))
    libc.fflush(None)
    assert capfd.readouterr().out == ""


def test_there_are_never_more_lists_than_documents_can_fill(tmp_path: Path) -> None:
    built = inverted(tmp_path / "index", unit(90), lists=1000, probes=None)
    assert (built.lists, built.probes) == (2, 2)
