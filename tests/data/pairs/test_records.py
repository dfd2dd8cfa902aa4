import json
import multiprocessing
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest

from embedkit.data.manifests.manifest import Manifest, load_manifest
from embedkit.data.pairs.records import Record, Records, open_records
from embedkit.errors import DataError, UserError
from embedkit.storage import cache

ROWS: list[dict[str, Any]] = [
    {"query": "a", "positive": "A", "negatives": ["x", "y"], "label": "vowel"},
    {"query": "b", "positive": "B", "negatives": [], "label": None},
    {"query": "c", "positive": "C", "negatives": ["z"], "label": "late"},
]
RECORDS = [
    Record("a", "A", ("x", "y"), "vowel"),
    Record("b", "B", (), None),
    Record("c", "C", ("z",), "late"),
]


def numbered(count: int) -> Iterator[dict[str, str]]:
    return ({"query": f"query {row}", "positive": f"positive {row}"} for row in range(count))


def manifest_over(folder: Path, rows: list[dict[str, Any]], more: str = "") -> Manifest:
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    toml = folder / "mine.toml"
    source = f'{{ kind = "files", files = [{{ path = "{path}" }}] }}'
    toml.write_text(f"source = {source}\n{more}")
    return load_manifest(str(toml))


def built_folders() -> list[str]:
    folder = cache.root() / "records"
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def test_rows_come_back_in_any_order() -> None:
    records = Records.from_rows(ROWS)
    assert records.take(np.array([2, 0, 2])) == [RECORDS[2], RECORDS[0], RECORDS[2]]
    assert len(records) == 3


def test_a_file_a_dataset_and_a_frame_give_the_same_records(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    made = [
        Records.from_rows(ROWS),
        Records.from_file(tmp_path / "rows.jsonl"),
        Records.from_dataset(datasets.Dataset.from_list(ROWS)),
        Records.from_pandas(pd.DataFrame(ROWS)),
    ]
    assert [each.take(range(3)) for each in made] == [RECORDS] * 4
    assert len({each.fingerprint for each in made}) == 1


def test_columns_prompts_and_task_are_given_by_keyword() -> None:
    records = Records.from_rows(
        [{"q": "a", "pos": ["b", "c"]}],
        columns={"query": "q", "positive": "pos[1]"},
        prompts={"query": "ask: "},
        task="question_answering",
        batch_size=8,
    )
    assert records[0] == Record("a", "c")
    assert (records.prompts.query, records.prompts.document) == ("ask: ", "")
    assert records.description.task == "question_answering"
    assert (records.batch_size, records.name) == (8, "rows")


def test_without_columns_each_row_may_have_its_own() -> None:
    rows = [{"query": "a", "positive": "A"}, ROWS[0], {"query": "b", "positive": "B", "label": "c"}]
    records = Records.from_rows(rows)
    assert records.take(range(3)) == [Record("a", "A"), RECORDS[0], Record("b", "B", (), "c")]


def test_an_unknown_keyword_is_refused() -> None:
    with pytest.raises(UserError, match="rows: prompt: there is no such key"):
        Records.from_rows(ROWS, prompt="ask: ")  # type: ignore[call-arg]


def test_a_dataset_of_several_splits_is_refused() -> None:
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)})
    with pytest.raises(DataError, match=r'choose a split, as in dataset\["train"\]'):
        Records.from_dataset(splits)


@pytest.mark.parametrize(
    ("negatives", "row"),
    [
        ("n", {"n": "x"}),
        ("n", {"n": ["x"]}),
        ("n", {"n": ["x", None, ""]}),
        (["n1", "n2"], {"n1": None, "n2": "x"}),
        (["n1", "n2"], {"n1": ["x"], "n2": []}),
        ("n[].text", {"n": [{"text": "x"}]}),
    ],
)
def test_negatives_are_a_text_several_columns_or_a_ragged_list(
    negatives: str | list[str], row: dict[str, Any]
) -> None:
    columns = {"negatives": negatives}
    records = Records.from_rows([{"query": "a", "positive": "A", **row}], columns=columns)
    assert records[0].negatives == ("x",)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"query": "b"}, r"mine: rows\.jsonl, line 2: no column 'positive' \(there are 'query'\)"),
        ({"query": " ", "positive": "B"}, r"line 2: query is empty: fill it in, or set drop_empty"),
        ({"query": "b", "positive": None}, r"line 2: positive is empty"),
        ({"query": 7, "positive": "B"}, r"line 2: query holds 7, not text"),
        ({"query": "b", "positive": "B", "label": "\ud800"}, r"line 2: label is not valid Unicode"),
        ({"query": "b", "positive": [2]}, r"line 2: positive holds 2, not text"),
        ({"query": "b", "positive": "B", "negatives": [1]}, r"line 2: negatives holds 1, not text"),
        ({"query": "b", "positive": "\ud800"}, r"line 2: positive is not valid Unicode"),
    ],
)
def test_a_bad_row_is_named_and_leaves_nothing_in_the_cache(
    tmp_path: Path, row: dict[str, Any], message: str
) -> None:
    good = {"query": "a", "positive": "A", "negatives": []}
    negatives = 'negatives = "negatives"' if "negatives" in row else ""
    manifest = manifest_over(tmp_path, [good, row], f"[columns]\n{negatives}")
    with pytest.raises(DataError, match=message):
        open_records(manifest)
    assert built_folders() == []


def test_a_bad_row_of_ones_own_is_named_too() -> None:
    with pytest.raises(DataError, match=r"mine: rows, row 2: query holds 7, not text"):
        Records.from_rows([ROWS[0], {"query": 7, "positive": "B"}], name="mine")
    assert built_folders() == []


def test_empty_rows_are_dropped_on_demand_and_filtered_rows_are_not_looked_at() -> None:
    rows = [
        {"query": "a", "positive": "A", "score": 5},
        {"query": "", "positive": "B", "score": 5},
        {"query": "c", "positive": 7, "score": 1},
    ]
    records = Records.from_rows(rows, drop_empty=True, filter="score > 4")
    assert records.take(range(len(records))) == [Record("a", "A")]


def test_the_first_of_equal_pairs_is_kept() -> None:
    numbers = [3, 1, 1, 4, 3, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
    rows = [{"query": f"q{n}", "positive": "p", "label": place} for place, n in enumerate(numbers)]
    records = Records.from_rows(rows, deduplicate=True)
    found = [(each.query, each.label) for each in records.take(range(len(records)))]
    first = {f"q{n}": str(numbers.index(n)) for n in numbers}
    assert found == list(first.items())


def test_a_row_outside_is_an_error() -> None:
    records = Records.from_rows(ROWS)
    for row in (3, -1):
        with pytest.raises(IndexError, match=f"row {row} of 3"):
            records.take([row])


def test_rows_of_every_batch_on_disk_are_found() -> None:
    records = Records.from_rows(numbered(2500))
    wanted = [2499, 0, 1023, 1024, 2048, 1]
    assert [each.query for each in records.take(wanted)] == [f"query {row}" for row in wanted]
    assert sum(1 for _ in records.texts()) == 5000


def test_records_pickle_as_their_place_on_disk() -> None:
    records = Records.from_rows(numbered(2500))
    pickled = pickle.dumps(records)
    assert len(pickled) < 3000
    assert pickle.loads(pickled)[2400] == records[2400]


@pytest.mark.slow
def test_a_spawned_worker_reads_the_same_rows() -> None:
    records = Records.from_rows(ROWS)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(records.take, [[2, 1]]) == [[RECORDS[2], RECORDS[1]]]


def test_the_fingerprint_follows_what_changes_training_and_nothing_else() -> None:
    first = Records.from_rows(ROWS).fingerprint
    assert Records.from_rows(ROWS, name="other", license="MIT").fingerprint == first
    changed = [
        Records.from_rows([*ROWS[:2], {**ROWS[2], "positive": "D"}]),
        Records.from_rows([*ROWS[:2], {**ROWS[2], "label": "other"}]),
        Records.from_rows(ROWS[::-1]),
        Records.from_rows(ROWS, prompts={"query": "ask: "}),
        Records.from_rows(ROWS, negatives_per_query=1),
        Records.from_rows(ROWS, in_batch_negatives=False),
        Records.from_rows(ROWS, batch_size=8),
        Records.from_rows(ROWS, max_query_tokens=8),
        Records.from_rows(ROWS, max_document_tokens=8),
    ]
    assert len({first, *(each.fingerprint for each in changed)}) == 10


def test_all_hard_negatives_are_read_up_to_four() -> None:
    for given, read in ((1, 1), (4, 4), (9, 4)):
        last: dict[str, Any] = {"query": "q", "positive": "p", "negatives": ["n"] * given}
        records = Records.from_rows([*numbered(1100), last])
        assert (records.negatives_given, records.negatives_per_query) == (given, read)
    assert Records.from_rows(numbered(3)).negatives_per_query == 0
    assert Records.from_rows(ROWS, negatives_per_query=0).negatives_per_query == 0
    assert Records.from_rows(ROWS).has_labels
    assert not Records.from_rows(numbered(3)).has_labels


def test_opening_again_reads_the_cache_until_the_file_changes(tmp_path: Path) -> None:
    manifest = manifest_over(tmp_path, ROWS)
    first = open_records(manifest)
    assert open_records(manifest).table.path == first.table.path
    changed = manifest_over(tmp_path, ROWS[:2])
    assert len(open_records(changed)) == 2
    assert len(first) == 3


@pytest.mark.parametrize("damage", ["cut", "deleted"])
def test_a_damaged_cache_is_built_anew(tmp_path: Path, damage: str) -> None:
    manifest = manifest_over(tmp_path, ROWS)
    path = open_records(manifest).table.path
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    else:
        path.unlink()
    assert open_records(manifest).take(range(3)) == RECORDS


def test_what_a_killed_build_left_does_not_matter(tmp_path: Path) -> None:
    manifest = manifest_over(tmp_path, ROWS)
    folder = open_records(manifest).table.path.parent
    folder.rename(folder.with_name(f".{folder.name}.aside"))
    assert len(open_records(manifest)) == 3
    assert built_folders() == [folder.name]


@pytest.mark.slow
def test_processes_that_open_at_once_build_once(tmp_path: Path) -> None:
    manifest = manifest_over(tmp_path, list(numbered(20_000)))
    with multiprocessing.get_context("fork").Pool(4) as pool:
        opened = pool.map(open_records, [manifest] * 4)
    assert {each.fingerprint for each in opened} == {open_records(manifest).fingerprint}
    assert built_folders() == [opened[0].table.path.parent.name]


def private_memory() -> int:
    # Pages of the mapped file are shared: the kernel takes them back as it likes.
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.parametrize("count", [400_000, pytest.param(2_000_000, marks=pytest.mark.soak)])
def test_millions_of_rows_are_neither_built_nor_opened_in_memory(count: int) -> None:
    Records.from_rows(numbered(5000), deduplicate=True)
    before = private_memory()
    text = "what stands in a row of this length, again and again " * 4
    rows = ({"query": f"{row} {text}", "positive": str(row)} for row in range(count))
    records = Records.from_rows(rows, deduplicate=True)
    size = records.table.path.stat().st_size
    wanted = np.random.default_rng(0).integers(len(records), size=2000)
    assert [each.positive for each in records.take(wanted)] == [str(row) for row in wanted]
    grown = private_memory() - before
    assert size > 200 * count
    assert grown < size / 4, f"{grown / 1e6:.0f} MB for a table of {size / 1e6:.0f} MB"
