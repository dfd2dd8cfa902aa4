"""What a user names on the command line: files of all formats, folders, data sets."""

import json
import warnings
from pathlib import Path

import datasets
import pyarrow as pa
import pytest

from embedkit.data.manifests.sources import FilesSource, HubSource
from embedkit.data.sources import files
from embedkit.data.sources.open_source import opened
from embedkit.data.sources.source_of import source_of
from embedkit.errors import DataError

ROWS = [{"query": f"q{n}", "positive": f"p{n}"} for n in range(5)]


def read(data: str | Path) -> list[dict[str, str]]:
    streams = opened(source_of(str(data))).streams
    return [dict(row) for _, rows in streams for _, row in rows]


def test_a_file_is_named_by_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pairs.csv").write_text("query,positive\nq,p\n")
    monkeypatch.chdir(tmp_path)
    source = source_of("pairs.csv")
    assert isinstance(source, FilesSource)
    assert source.files[0].path == str(tmp_path / "pairs.csv")
    hub = source_of("org/forum")
    assert isinstance(hub, HubSource)
    assert hub.id == "org/forum"
    for wrong in ("pairs.cvs", "org/pairs.csv", "forum", "a/b/c"):
        with pytest.raises(DataError, match=f"{wrong}: no such file or folder: give a file"):
            source_of(wrong)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("FAQ.CSV", "query,positive\nq,p\n"),
        ("faq.Tsv", "query\tpositive\nq\tp\n"),
        ("faq.JSONL", '{"query": "q", "positive": "p"}\n'),
        ("faq.json", '\n[\n{"query": "q",\n "positive": "p"}\n]\n'),
        ("faq.json", '{"query": "q", "positive": "p"}\n'),
        ("faq.csv", "\ufeffquery,positive\nq,p\n"),
    ],
)
def test_suffixes_may_be_in_any_case_and_json_an_array(
    name: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read(tmp_path / name) == [{"query": "q", "positive": "p"}]


def test_semicolons_are_told_by_the_header_alone(tmp_path: Path) -> None:
    path = tmp_path / "faq.csv"
    path.write_text('query;positive\n"a; b";c, d, e\n')
    with pytest.warns(UserWarning, match="are separated by semicolons") as caught:
        assert read(path) == [{"query": "a; b", "positive": "c, d, e"}]
    assert len(caught) == 1
    path.write_text("query,positive\na;b,c;d\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(path) == [{"query": "a;b", "positive": "c;d"}]


def test_errors_in_csv_and_json_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "faq.csv"
    path.write_text("\nquery,positive\na,b\nc\n")
    with pytest.raises(DataError, match=r"faq.csv, line 4: 1 values under 2 column names"):
        list(files.rows(path))
    path = tmp_path / "faq.json"
    path.write_text('\n[{"query": "q"},\n{"query" "r"}]\n')
    with pytest.raises(DataError, match=r"faq.json, line 3: not valid JSON"):
        list(files.rows(path))
    path.write_text('[{"query": "q"}, 3]')
    with pytest.raises(DataError, match="row 2: expected a JSON object, found 3"):
        list(files.rows(path))


def test_a_folder_stands_for_its_files_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS[2:]))
    (tmp_path / "a.csv").write_text("query,positive\nq0,p0\nq1,p1\n")
    (tmp_path / "README.md").write_text("about")
    (tmp_path / "notes.txt").write_text("about")
    assert read(tmp_path) == ROWS
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: holds no file of rows"):
        source_of(str(tmp_path / "empty"))


def test_files_of_another_split_are_left_out_and_said(tmp_path: Path) -> None:
    for split in ("train", "test", "dev"):
        (tmp_path / f"{split}.csv").write_text(f"query,positive\n{split},p\n")
    with pytest.warns(UserWarning, match=r"read, and not dev\.csv, test\.csv"):
        assert read(tmp_path) == [{"query": "train", "positive": "p"}]
    (tmp_path / "train.csv").unlink()
    assert len(read(tmp_path)) == 2


def test_a_folder_that_datasets_saved_is_read(tmp_path: Path) -> None:
    data = datasets.Dataset.from_list(ROWS)
    data.save_to_disk(tmp_path / "one", num_shards=2)
    assert read(tmp_path / "one") == ROWS
    datasets.DatasetDict({"train": data, "test": data}).save_to_disk(tmp_path / "two")
    with pytest.warns(UserWarning, match="its split train is read, and not test"):
        assert read(tmp_path / "two") == ROWS
    datasets.DatasetDict({"a": data, "b": data}).save_to_disk(tmp_path / "three")
    with pytest.raises(DataError, match="has the splits a, b: name the folder of one"):
        source_of(str(tmp_path / "three"))


def test_arrow_files_of_both_kinds_are_read(tmp_path: Path) -> None:
    table, path = pa.Table.from_pylist(ROWS), tmp_path / "rows.arrow"
    for new in (pa.ipc.new_file, pa.ipc.new_stream):
        with new(str(path), table.schema) as writer:
            writer.write_table(table)
        assert read(path) == ROWS
