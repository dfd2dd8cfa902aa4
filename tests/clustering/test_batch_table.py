"""Contextual batches on disk, and the making of them."""

import json
import os
import pickle
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.interrupted import start
from support.ranks import run_on_ranks
from support.small_runs import write_source

import embedkit
from embedkit import BatchTable, DataError, Records, UserError
from embedkit.clustering import build
from embedkit.clustering.build import write_order
from embedkit.clustering.quality import compare
from embedkit.clustering.settings import ClusteringOptions
from embedkit.recipe import load_recipe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> str:
    """Of 60 pairs in batches of 8, and 5 of their own, which fill none."""
    folder = tmp_path_factory.mktemp("recipe")
    mix = [write_source(folder, name, rows, 0) for name, rows in (("many", 60), ("few", 5))]
    named = ", ".join(f'{{ manifest = "{each}" }}' for each in mix)
    path = folder / "recipe.toml"
    path.write_text(
        f'model = "{tiny_model}"\nsteps = 3\n[data]\nbatch_size = 8\nmix = [{named}]\n'
        "[optim]\nlr = 1e-3\n"
    )
    return str(path)


@pytest.fixture(scope="module")
def folder(
    recipe: str, tiny_model: Path, native_bf16: str, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A table with its report. Read it only: all tests share it."""
    folder = tmp_path_factory.mktemp("table") / "out"
    embedkit.cluster(recipe, folder, surrogate=tiny_model, dims=8)
    return folder


def sources_of(recipe: str) -> list[Records]:
    return [
        embedkit.data.pairs.records.open_records(mix.manifest)
        for mix in load_recipe(recipe).data.mix
    ]


def test_batches_are_full_and_of_one_source(folder: Path) -> None:
    table = BatchTable.open(folder)
    many = table["many"]
    assert [len(many[batch]) for batch in range(len(many))] == [8] * 7
    rows = np.concatenate([many[batch] for batch in range(7)])
    assert sorted([*rows, *many.left_out]) == list(range(60))


def test_a_source_smaller_than_a_batch_is_one_batch_of_all_its_rows(folder: Path) -> None:
    few = BatchTable.open(folder)["few"]
    assert len(few) == 1
    assert few[0].tolist() == [0, 1, 2, 3, 4]
    assert len(few.left_out) == 0


def test_the_rest_may_be_a_short_batch(recipe: str, tiny_model: Path, tmp_path: Path) -> None:
    table = embedkit.cluster(recipe, tmp_path / "out", surrogate=tiny_model, short_batch=True)
    many = table["many"]
    assert [len(many[batch]) for batch in range(len(many))] == [8] * 7 + [4]
    assert len(many.left_out) == 0


def test_there_is_no_batch_beyond_the_last(folder: Path) -> None:
    many = BatchTable.open(folder)["many"]
    for batch in (-1, 7):
        with pytest.raises(IndexError, match=f"batch {batch} of many, which has 7"):
            many[batch]


def test_the_vectors_are_kept_for_every_row(folder: Path, tiny_model: Path) -> None:
    table = BatchTable.open(folder)
    assert {name: len(each.vectors) for name, each in table.sources.items()} == {
        "many": 60,
        "few": 5,
    }


def test_the_report_has_the_numbers_of_the_batches(folder: Path) -> None:
    table, page = BatchTable.open(folder), (folder / "report.md").read_text()
    assert table.hash in page
    found = compare(table["many"], torch.device("cpu"), seed=0)
    assert "8 batches of 2 sources" in page
    assert f"| many | ours | 7 | 8 | {found.ours.cohesion.mean():.3f} |" in page
    assert found.ours.hardest.mean() > found.random.hardest.mean()
    store = table["many"].vectors
    q, d = (np.array(side, dtype=np.float64) for side in (store.queries, store.documents))
    hardest = []
    for batch in range(7):
        rows = table["many"][batch]
        scores = q[rows] @ d[rows].T
        np.fill_diagonal(scores, -np.inf)
        hardest.append(scores.max(axis=1))
    assert found.ours.hardest.mean() == pytest.approx(np.mean(hardest), abs=1e-4)
    assert (folder / "report.png").stat().st_size > 1000
    assert "many: 4 rows in no batch" in page


def test_a_model_that_is_lent_reads_as_far_as_before(
    recipe: str, tiny_model: Path, tmp_path: Path
) -> None:
    model = embedkit.load(str(tiny_model))
    before = model.max_tokens
    table = embedkit.cluster(recipe, tmp_path / "out", surrogate=model, max_tokens=4)
    assert model.max_tokens == before > 4
    assert table.header["surrogate"]["identity"] != model.identity


def test_a_second_run_only_opens_what_is_there(recipe: str, folder: Path, tiny_model: Path) -> None:
    kept = [folder / "report.md", *folder.rglob("*.i64"), *folder.rglob("*.f16")]
    before = [path.stat().st_mtime_ns for path in kept]
    then = BatchTable.open(folder).hash
    assert embedkit.cluster(recipe, folder, surrogate=tiny_model, dims=8).hash == then
    assert [path.stat().st_mtime_ns for path in kept] == before


def test_a_second_run_with_other_settings_is_refused_on_one_line(
    recipe: str, folder: Path, tiny_model: Path
) -> None:
    with pytest.raises(UserError, match=r"settings.dims: 8 -> 4; undo the change") as refused:
        embedkit.cluster(recipe, folder, surrogate=tiny_model, dims=4)
    assert "\n" not in str(refused.value)
    smaller = load_recipe(recipe, ["data.batch_size=4"])
    with pytest.raises(UserError, match=r"sources.many.batch_size: 8 -> 4"):
        embedkit.cluster(smaller, folder, surrogate=tiny_model, dims=8)


def test_a_folder_of_something_else_is_left_alone(
    recipe: str, tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UserError, match="is not empty and holds no batches"):
        embedkit.cluster(recipe, tmp_path, surrogate=tiny_model)


def test_a_process_that_was_killed_as_it_began_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / ".begun.json.part").write_text("{")
    surrogate = {"name": "m", "identity": "a" * 64}
    build._begin(tmp_path, {"settings": {}, "surrogate": surrogate, "sources": []})
    assert (tmp_path / "begun.json").is_file()


def test_a_killed_run_ends_as_an_unbroken_one(
    recipe: str, folder: Path, tiny_model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = start(_cluster_until_killed, recipe, tiny_model, out)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with pytest.raises(DataError, match="holds no batches, or not all of them yet"):
        BatchTable.open(out)
    table = embedkit.cluster(recipe, out, surrogate=tiny_model, dims=8)
    assert table.hash == BatchTable.open(folder).hash


def test_ranks_make_the_table_of_one(
    recipe: str, folder: Path, tiny_model: Path, tmp_path: Path
) -> None:
    run_on_ranks(2, _cluster, recipe, tiny_model, tmp_path / "out")
    assert BatchTable.open(tmp_path / "out").hash == BatchTable.open(folder).hash


@pytest.mark.parametrize(
    "changed", [{"seed": 1}, {"dims": 7}, {"backend": "faiss"}, {"short_batch": True}]
)
def test_settings_change_the_hash(
    changed: ClusteringOptions, recipe: str, folder: Path, tiny_model: Path, tmp_path: Path
) -> None:
    options: ClusteringOptions = {"dims": 8, **changed}
    table = embedkit.cluster(recipe, tmp_path / "out", surrogate=tiny_model, **options)
    assert table.hash != BatchTable.open(folder).hash


def test_a_table_is_checked_against_the_records(recipe: str, folder: Path) -> None:
    table, records = BatchTable.open(folder), sources_of(recipe)
    records = [each.renamed(Path(each.name).stem) for each in records]
    table.check(records, [8, 8])
    with pytest.raises(DataError, match="many: its batches were made for batch_size = 8, not 16"):
        table.check(records, [16, 8])
    other = Records.from_rows([{"query": "a", "positive": "b"}], name="many")
    with pytest.raises(DataError, match="many: its rows are not those"):
        table.check([other], [8])
    with pytest.raises(DataError, match=r"new: has no batches here \(many, few have\)"):
        table.check([other.renamed("new")], [8])


def test_a_source_pickles_as_its_place(folder: Path) -> None:
    many = BatchTable.open(folder)["many"]
    data = pickle.dumps(many)
    assert len(data) < 1000
    assert np.array_equal(pickle.loads(data)[3], many[3])


def test_a_cut_file_says_how_to_mend_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text((folder / "table.json").read_text())
    with pytest.raises(DataError, match="is not whole: remove it and run embedkit cluster again"):
        BatchTable.open(tmp_path)


def test_a_table_written_by_an_earlier_version_opens(tmp_path: Path) -> None:
    header = {
        "settings": {
            "dims": 128,
            "max_tokens": 32,
            "short_batch": True,
            "backend": "torch",
            "seed": 0,
        },
        "surrogate": {"name": "starter", "identity": "17f378b38b50"},
        "sources": [{"name": "pairs", "content": "2438675df6eb", "rows": 5, "batch_size": 2}],
        "batches": "44717c8f08cc",
        "hash": "cf23784e0a54",
    }
    (tmp_path / "table.json").write_text(json.dumps(header))
    folder = tmp_path / "sources" / "000"
    folder.mkdir(parents=True)
    (folder / "rows.i64").write_bytes(np.array([3, 1, 0, 4, 2], dtype="<i8").tobytes())
    table = BatchTable.open(tmp_path)
    pairs = table["pairs"]
    assert table.hash == "cf23784e0a54"
    assert [pairs[batch].tolist() for batch in range(len(pairs))] == [[3, 1], [0, 4], [2]]


def test_the_hash_names_the_batches_too(folder: Path) -> None:
    header = json.loads((folder / "table.json").read_text())
    assert len(header["batches"]) == 64
    assert header["surrogate"]["identity"]


def _cluster(recipe: str, model: Path, out: Path) -> None:
    embedkit.cluster(recipe, out, surrogate=model, dims=8)


def _cluster_until_killed(recipe: str, model: Path, out: Path) -> None:
    def write_then_die(folder: Path, order: NDArray[np.int64]) -> None:
        write_order(folder, order)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "write_order", write_then_die)
        _cluster(recipe, model, out)
