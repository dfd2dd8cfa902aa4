"""Folders of shards beside ``counts.json``, read to records."""

import gzip
import json
import os
from pathlib import Path

import pytest
from support.shards import write_shards

from embedkit.data.manifests.manifest import Manifest, load_manifest
from embedkit.data.pairs.records import Record, open_records
from embedkit.data.sources.files import Rows
from embedkit.data.sources.readers.shards import Shards, read
from embedkit.errors import DataError, UserError

# What is not ASCII has more bytes than characters.
FIRST = [{"query": "déjà", "pos": "vu"}, {"query": "a", "pos": "b"}]
SECOND = [{"query": "c", "pos": "d"}]
ALL = [Record("déjà", "vu"), Record("a", "b"), Record("c", "d")]
SHARDS = {"shard-00000.jsonl.gz": FIRST, "shard-00001.jsonl.gz": SECOND}
TWO = 'files = "shard-{00000..00001}.jsonl.gz"'


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EMBEDKIT_HUB", raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_shards(tmp_path, "bucket/pairs", SHARDS, "query", "pos")


def manifest(
    tmp_path: Path, folder: Path | str, more: str = TWO, *, rows: str = "", positive: str = "pos"
) -> Manifest:
    path = tmp_path / "mine.toml"
    source = f'[source]\nkind = "shards"\nfolder = "{folder}"\n{more}'
    path.write_text(f'{rows}\n{source}\n[columns]\nquery = "query"\npositive = "{positive}"\n')
    return load_manifest(str(path))


def rows_of(folder: Path) -> list[tuple[str, Rows]]:
    return read(folder, Shards(folder="anywhere", files="shard-{00000..00001}.jsonl.gz"))


def walk(folder: Path) -> None:
    for _, rows in rows_of(folder):
        list(rows)


def rewrite(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode()))


def test_shards_are_read_one_after_the_other(tmp_path: Path, folder: Path) -> None:
    records = open_records(manifest(tmp_path, folder))
    assert records.take(range(len(records))) == ALL


def test_a_folder_is_found_under_the_one_that_stands_for_the_hub(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Paths start at the manifest, so that it has to lie elsewhere.
    (tmp_path / "manifests").mkdir()
    described = manifest(tmp_path / "manifests", "bucket/pairs")
    with pytest.raises(DataError, match=r"mine: bucket/pairs: no such folder, here or under"):
        open_records(described)
    monkeypatch.setenv("EMBEDKIT_HUB", str(tmp_path))
    assert len(open_records(described)) == 3


def test_columns_may_be_renamed(tmp_path: Path, folder: Path) -> None:
    more = f'{TWO}\nrename = {{ query = "pos", pos = "query" }}'
    assert open_records(manifest(tmp_path, folder, more))[1] == Record("b", "a")


@pytest.mark.parametrize(
    ("more", "positive", "message"),
    [
        ("", "pos", r"mine: shard-00001\.jsonl\.gz, line 1: no column 'pos' \(there are 'query', "),
        (
            'rename = { pos = "p" }',
            "p",
            r"/shard-00001\S+, line 1: no column 'pos' .*correct rename",
        ),
    ],
)
def test_a_column_under_another_name_is_refused(
    tmp_path: Path, more: str, positive: str, message: str
) -> None:
    renamed = {**SHARDS, "shard-00001.jsonl.gz": [{"query": "c", "body": "d"}]}
    folder = write_shards(tmp_path, "pairs", renamed, "query", "body")
    with pytest.raises(DataError, match=message) as caught:
        open_records(manifest(tmp_path, folder, f"{TWO}\n{more}", positive=positive))
    assert "\n" not in str(caught.value)


def test_shards_that_have_no_count_are_left_out(tmp_path: Path) -> None:
    folder = write_shards(tmp_path, "pairs", {**SHARDS, "shard-00002.jsonl.gz": []}, "query", "pos")
    more = 'files = "shard-{00000..00009}.jsonl.gz"'
    assert len(open_records(manifest(tmp_path, folder, more))) == 3


def test_one_shard_is_named_without_a_range(tmp_path: Path, folder: Path) -> None:
    more = 'files = "shard-00001.jsonl.gz"'
    assert len(open_records(manifest(tmp_path, folder, more))) == 1


@pytest.mark.parametrize("name", ["{}", "bucket/pairs/{}", "s3://bucket/pairs/{}"])
def test_counts_may_be_a_flat_table_of_places_in_the_bucket(folder: Path, name: str) -> None:
    counts = {name.format(shard): len(rows) for shard, rows in SHARDS.items()}
    (folder / "counts.json").write_text(json.dumps(counts))
    assert [shard for shard, _ in rows_of(folder)] == list(SHARDS)


def test_a_shard_is_not_read_before_its_turn(folder: Path) -> None:
    (folder / "shard-00001.jsonl.gz").write_bytes(b"no gzip at all")
    (_, first), (_, second) = rows_of(folder)
    assert [row["pos"] for _, row in first] == ["vu", "b"]
    with pytest.raises(DataError, match=r"shard-00001\.jsonl\.gz: unreadable or cut short"):
        next(second)


def test_shards_that_were_read_are_not_read_again(tmp_path: Path, folder: Path) -> None:
    described = manifest(tmp_path, folder)
    open_records(described)
    shard = folder / "shard-00000.jsonl.gz"
    before = shard.stat()
    shard.write_bytes(b"x" * before.st_size)
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert open_records(described)[0] == ALL[0]
    os.utime(shard)
    with pytest.raises(DataError, match="unreadable"):
        open_records(described)


def test_another_number_of_rows_than_the_manifest_s_is_refused(
    tmp_path: Path, folder: Path
) -> None:
    with pytest.raises(DataError, match="mine: 3 rows, expected 4: correct rows in the manifest"):
        open_records(manifest(tmp_path, folder, rows="rows = 4"))
    with pytest.raises(DataError, match="mine: 3 rows read, expected 4: correct rows_read in the"):
        open_records(manifest(tmp_path, folder, rows="rows_read = 4"))
    assert len(open_records(manifest(tmp_path, folder, rows="rows_read = 3"))) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"query": "a", "pos": "b"}\n', r"/shard-00000\.jsonl\.gz: 1 rows, where counts\.json sa"),
        ('{"query": "a"}\n{"query": \n', r"/shard-00000\.jsonl\.gz, line 2: not valid JSON"),
    ],
)
def test_a_bad_shard_is_an_error_with_its_place(folder: Path, text: str, message: str) -> None:
    rewrite(folder / "shard-00000.jsonl.gz", text)
    with pytest.raises(DataError, match=message):
        walk(folder)


def test_a_shard_that_is_missing_is_named(folder: Path) -> None:
    (folder / "shard-00001.jsonl.gz").unlink()
    message = r"/shard-00001\.jsonl\.gz: no such file, and counts\.json lists 1 rows .*1 of 2"
    with pytest.raises(DataError, match=message):
        rows_of(folder)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (None, r"counts\.json: No such file or directory: fetch it with its shards"),
        ("[1]", r"counts\.json: is no table of shards and their rows"),
        ('{"shard-00000.jsonl.gz": "many"}', r"counts\.json: is no table of shards"),
        ("{", r"counts\.json: is no table of shards"),
        ('{"part-0.jsonl.gz": 3}', r"counts\.json: lists no rows of shard-\{00000\.\.00001\}"),
    ],
)
def test_counts_that_say_nothing_are_refused(
    folder: Path, counts: str | None, message: str
) -> None:
    (folder / "counts.json").unlink()
    if counts is not None:
        (folder / "counts.json").write_text(counts)
    with pytest.raises(DataError, match=message):
        rows_of(folder)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ("shard-{0..}.gz", r"'shard-\{0\.\.\}\.gz' is no pattern; write it as in: shard-\{000\.\."),
        ("shard-{9..0}.gz", r"'shard-\{9\.\.0\}\.gz' stands for no file"),
    ],
)
def test_a_pattern_that_names_nothing_is_refused(tmp_path: Path, files: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        manifest(tmp_path, "pairs", f'files = "{files}"')
