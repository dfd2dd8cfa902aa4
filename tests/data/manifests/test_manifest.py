from pathlib import Path
from typing import Any

import pytest
from embedkit_cli.data import app
from support.manifests import shipped_manifests, shipped_text_manifests
from typer.testing import CliRunner

from embedkit.data.manifests.columns import ColumnPath, Columns, RowFilter
from embedkit.data.manifests.manifest import Manifest, load_manifest
from embedkit.data.manifests.sources import HubSource
from embedkit.errors import DataError, UserError

FILES = 'source = { kind = "files", files = [{ path = "pairs.jsonl" }] }\n'
HUB = '[source]\nkind = "hub"\nid = "org/pairs"\n'
ROW = {
    "title": "a",
    "set": {"query": "b", "pos": ["c", "d"]},
    "paras": [{"text": "e"}, {"text": "f"}],
    "dotted.name": "g",
    "empty": [],
    "none": None,
}


def read(folder: Path, text: str) -> Manifest:
    path = folder / "mine.toml"
    path.write_text(text)
    return load_manifest(str(path))


@pytest.mark.parametrize("name", shipped_manifests())
def test_a_shipped_manifest_states_its_licence_and_pins_its_rows(name: str) -> None:
    manifest = load_manifest(name)
    assert manifest.license
    assert manifest.source.kind != "package" or manifest.rows


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("npr2", "did you mean npr? embedkit data list prints all "),
        ("manpage", "did you mean open/manpages? embedkit data list prints all "),
        # A file of the folder, but no manifest.
        ("instruction", "embedkit data list prints all "),
    ],
)
def test_near_manifests_are_offered_in_place_of_an_unknown_name(name: str, offered: str) -> None:
    with pytest.raises(UserError) as caught:
        load_manifest(name)
    assert str(caught.value).startswith(f"{name}: not a name under data_manifests/ ({offered}")
    assert len(str(caught.value)) < 150


def test_data_list_names_every_manifest_and_nothing_else() -> None:
    result = CliRunner().invoke(app, ["list"])
    lines = [line.split("\t") for line in result.output.splitlines()]
    assert [name for name, *_ in lines] == sorted([*shipped_manifests(), *shipped_text_manifests()])
    assert ["npr", "pairs", "594,384 rows", "not stated"] in lines
    assert "wikipedia" in {name for name, kind, *_ in lines if kind == "text"}


def test_a_revision_may_be_left_open(tmp_path: Path) -> None:
    source = read(tmp_path, HUB).source
    assert isinstance(source, HubSource)
    assert source.revision is None


def test_a_manifest_is_called_as_its_file(tmp_path: Path) -> None:
    assert read(tmp_path, FILES).name == "mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FILES + "negative_per_query = 2", r"mine\.toml: negative_per_query: there is no such key"),
        (FILES + "rows = 0", r"rows: Input should be greater than 0 \(got 0\)"),
        (FILES + 'task = "search"', r"task: Input should be 'retrieval'"),
        (FILES + 'name = "other"', r"mine\.toml: name: take it out"),
        (FILES + 'filter = "score >> 4"', r"filter: 'score >> 4': write text in quotes"),
        (FILES + 'filter = "score"', r"filter: 'score' is no filter; write it as in: score > 4"),
        (FILES + 'columns = { query = "a[x]" }', r"columns\.query\.0: 'a\[x\]' is no column path"),
        (HUB + 'revision = "main"', r"source\.revision: String should match"),
        (FILES + "max_query_tokens = 2", r"max_query_tokens: .*greater than or equal to 3 \(got 2"),
        (
            FILES + 'held_out = { share = 0.5, tasks = ["retrieval"] }',
            r"held_out\.tasks\.0: [^;]*\(got 'retrieval'\)$",
        ),
        (FILES + "columns = { positive = [] }", r"columns\.positive: .* at least 1 item"),
        (HUB + 'config = "a"\nconfigs = [{ name = "b" }]', r"source: config or configs, not"),
        ('source = { kind = "url" }', r"source: Input tag 'url'"),
        ("license = ", r"mine\.toml: not valid TOML"),
    ],
)
def test_a_mistake_is_one_line_that_names_file_and_key(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("{}", r"held_out needs columns\.concept"),
        ('{ concept = "id", negatives = "neg" }', r"needs columns\.negative_concepts"),
        ('{ concept = "id" }', r"needs columns\.topic"),
    ],
)
def test_holding_out_needs_the_columns_that_tell_concepts(
    tmp_path: Path, columns: str, message: str
) -> None:
    tasks = '[{ name = "t", type = "classification+clustering" }]'
    held_out = f"held_out = {{ share = 0.5, tasks = {tasks} }}\n"
    with pytest.raises(UserError, match=message):
        read(tmp_path, FILES + held_out + f"columns = {columns}")


def test_negatives_are_one_column_or_several(tmp_path: Path) -> None:
    one = read(tmp_path, FILES + 'columns = { negatives = "neg" }').columns
    several = read(tmp_path, FILES + 'columns = { negatives = ["n1", "n2"] }').columns
    assert one == Columns(negatives=("neg",))
    assert several == Columns(negatives=("n1", "n2"))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("title", "a"),
        ("set.query", "b"),
        ("set.pos[0]", "c"),
        ("set.pos[-1]", "d"),
        ("set.pos[2]", None),
        ("paras[].text", ["e", "f"]),
        ("paras[1].text", "f"),
        ("dotted.name", "g"),
        ("empty[0]", None),
        ("none.text", None),
    ],
)
def test_a_column_path_reaches_into_nested_values(path: str, value: Any) -> None:
    assert ColumnPath(path)(ROW) == value


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("tittle", r"no column 'tittle' \(there are 'title', 'set'"),
        ("set.answer", r"no field 'answer' \(there are 'query', 'pos'\)"),
        ("title[0]", r"title\[0\]: expected a list, found 'a'"),
        ("title.text", r"title\.text: expected a table, found 'a'"),
    ],
)
def test_a_column_path_that_fits_no_value_is_refused(path: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        ColumnPath(path)(ROW)


@pytest.mark.parametrize(
    ("text", "row", "kept"),
    [
        ("score > 4", {"score": 4}, False),
        ("score > 4", {"score": 4.5}, True),
        ("score >= 4", {"score": "4.0"}, True),
        ("score < 10", {"score": "9"}, True),
        ("score <= 3", {"score": 4}, False),
        ('split == "train"', {"split": "train"}, True),
        ('split != "train"', {"split": "train"}, False),
        ("good == true", {"good": True}, True),
        ("meta.score > 4", {"meta": {"score": 5}}, True),
        ("score > 4", {"score": None}, False),
    ],
)
def test_a_filter_compares_a_column_with_a_literal(
    text: str, row: dict[str, Any], kept: bool
) -> None:
    assert RowFilter(text)(row) is kept


def test_a_filter_refuses_what_cannot_be_compared() -> None:
    with pytest.raises(DataError, match="'high' cannot be compared in the filter score > 4"):
        RowFilter("score > 4")({"score": "high"})
