import gzip
import json
from pathlib import Path
from typing import Any

import datasets
import pandas as pd  # type: ignore[import-untyped]
import pytest

from embedkit.data.text.texts import Texts
from embedkit.errors import DataError, UserError
from embedkit.storage import cache


def texts_in(texts: Texts) -> list[str]:
    return [document.text for document in texts.documents()]


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def manifest_over(file: Path, more: str) -> Texts:
    path = file.with_name("mine.toml")
    source = f'{{ kind = "files", files = [{{ path = "{file}" }}] }}'
    path.write_text(f"source = {source}\n{more}")
    return Texts.from_manifest(path)


def test_strings_and_mappings_are_rows() -> None:
    assert texts_in(Texts.from_rows(["a b", {"text": "c\nd"}])) == ["a b", "c\nd"]
    with pytest.raises(DataError, match="the rows are a single str: pass a list of documents"):
        Texts.from_rows("a b")


def test_rows_a_file_and_a_dataset_give_the_same_documents(tmp_path: Path) -> None:
    rows = [{"text": "one"}, {"text": "two"}]
    made = [
        Texts.from_rows(rows),
        Texts.from_file(write_jsonl(tmp_path / "rows.jsonl", rows)),
        Texts.from_dataset(datasets.Dataset.from_list(rows)),
        Texts.from_dataset(datasets.Dataset.from_list(rows).to_iterable_dataset()),
        Texts.from_pandas(pd.DataFrame(rows)),
    ]
    assert [texts_in(each) for each in made] == [["one", "two"]] * 5
    assert [each.name for each in made] == ["texts", "rows", "dataset", "dataset", "frame"]


def test_texts_may_be_read_twice() -> None:
    texts = Texts.from_rows(f"text {number}" for number in range(3))
    assert texts_in(texts) == texts_in(texts) == ["text 0", "text 1", "text 2"]


def test_equal_rows_share_their_place_in_the_cache() -> None:
    texts = Texts.from_rows(["a", "b"])
    assert Texts.from_rows(iter(["a", "b"])).manifest == texts.manifest
    assert Texts.from_rows(["ab", ""], drop_empty=True).manifest.source != texts.manifest.source
    assert len(list((cache.root() / "texts").iterdir())) == 2


def test_a_text_file_has_a_document_a_line_and_blank_lines_are_none(tmp_path: Path) -> None:
    plain = tmp_path / "lines.txt"
    plain.write_text("first line\n\n  second \n")
    packed = tmp_path / "lines.txt.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert texts_in(Texts.from_file(plain)) == ["first line", "second"]
    assert texts_in(Texts.from_file(packed)) == ["first line", "second"]


def test_several_columns_are_joined_and_empty_ones_left_out() -> None:
    rows: list[dict[str, Any]] = [
        {"title": "A", "parts": [{"body": "b"}, {"body": " "}, {"body": "c"}]},
        {"title": None, "parts": [{"body": "d"}]},
    ]
    texts = Texts.from_rows(rows, columns={"text": ["title", "parts[].body"]})
    assert texts_in(texts) == ["A\nb\nc", "d"]


def test_lists_of_lists_keep_their_order() -> None:
    row = {"parts": [{"lines": ["a", "b"]}, {"lines": []}, {"lines": ["c"]}]}
    assert texts_in(Texts.from_rows([row], columns={"text": "parts[].lines"})) == ["a\nb\nc"]


def test_a_filter_and_deduplication_leave_rows_out() -> None:
    rows: list[dict[str, str | None]] = [
        {"text": "a", "language": "en"},
        {"text": "a", "language": "de"},
        {"text": "b", "language": "en"},
        {"text": "a", "language": "en"},
        {"text": "c", "language": None},
    ]
    texts = Texts.from_rows(rows, filter='language == "en"', deduplicate=True)
    assert texts_in(texts) == ["a", "b"]


def test_an_empty_row_is_an_error_or_left_out(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"text": "a"}, {"text": " "}, {"text": None}]
    with pytest.raises(DataError, match=r"^texts: rows, row 2: text is empty: .*drop_empty = true"):
        Texts.from_rows(rows)
    assert texts_in(Texts.from_rows(rows, drop_empty=True)) == ["a"]
    file = Texts.from_file(write_jsonl(tmp_path / "rows.jsonl", rows))
    with pytest.raises(DataError, match=r"^rows: rows\.jsonl, line 2: text is empty"):
        texts_in(file)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": 3}, "row 1: text holds 3, not text"),
        ({"body": "a"}, r"row 1: no column 'text' \(there are 'body'\)"),
        ({"text": "\ud800"}, "row 1: text is not valid Unicode"),
    ],
)
def test_a_row_without_text_is_named(row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Texts.from_rows([row])


@pytest.mark.parametrize("option", ["rows", "source", "row"])
def test_what_only_a_manifest_says_is_no_option(option: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    options: Any = {option: 1}
    with pytest.raises(UserError, match=f"a: {option}: there is no such key$"):
        Texts.from_file(tmp_path / "a.txt", **options)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(UserError, match="column: there is no such key, did you mean columns"):
        Texts.from_rows(["a"], column="text")  # type: ignore[call-arg]


def test_a_split_must_be_chosen() -> None:
    with pytest.raises(DataError, match=r'dataset\["train"\]'):
        Texts.from_dataset(datasets.DatasetDict({"train": datasets.Dataset.from_list([])}))


def test_whole_concepts_are_held_out() -> None:
    rows = [{"text": f"text {n}", "about": n % 50} for n in range(200)]
    columns = {"text": "text", "concept": "about"}
    texts = Texts.from_rows(rows, columns=columns, held_out={"share": 0.3})
    sides: dict[str | None, set[bool]] = {}
    for document in texts.documents():
        sides.setdefault(document.concept, set()).add(document.held_out)
    assert len(sides) == 50
    assert all(len(side) == 1 for side in sides.values())
    assert 5 <= sum(side == {True} for side in sides.values()) <= 25


def test_without_concepts_a_share_of_the_texts_is_held_out() -> None:
    texts = Texts.from_rows([f"text {n}" for n in range(1000)], held_out={"share": 0.1})
    documents, held_out = texts.count()
    assert documents == 1000
    assert 70 < held_out < 130
    # Not by their place: a text is on the same side wherever it stands.
    other = Texts.from_rows([f"text {n}" for n in range(999, -1, -1)], held_out={"share": 0.1})
    assert other.count() == (documents, held_out)


def test_a_wrong_number_of_documents_is_refused(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "rows.jsonl", [{"text": "a"}, {"text": "b"}])
    more = 'columns = { text = "text" }\nrows = '
    assert manifest_over(file, more + "2").count() == (2, 0)
    with pytest.raises(DataError, match="mine: 2 documents, expected 3"):
        manifest_over(file, more + "3").count()


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.jsonl: no such file"):
        Texts.from_file("absent.jsonl")
    texts = manifest_over(tmp_path / "absent.jsonl", 'columns = { text = "text" }')
    with pytest.raises(DataError, match=r"^mine: .*absent\.jsonl: no such file"):
        texts.open()


@pytest.fixture
def _own_datasets_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")


@pytest.mark.usefixtures("_own_datasets_cache")
def test_a_folder_stands_for_the_hub_and_is_not_copied(tmp_path: Path) -> None:
    folder = tmp_path / "org_articles"
    folder.mkdir()
    write_jsonl(folder / "train.jsonl", [{"content": "a"}, {"content": "b"}])
    path = tmp_path / "mine.toml"
    source = f'{{ kind = "hub", id = "{folder}" }}'
    path.write_text(f'source = {source}\ncolumns = {{ text = "content" }}')
    assert texts_in(Texts.from_manifest(path)) == ["a", "b"]
    assert not list(tmp_path.glob("datasets/**/*.arrow"))


def test_the_newest_revision_of_a_hub_out_of_reach_is_one_line() -> None:
    with pytest.raises(DataError, match=r"^wikipedia: .*newest revision of wikimedia/.*lock") as no:
        Texts.from_manifest("wikipedia").open()
    assert "\n" not in str(no.value)
