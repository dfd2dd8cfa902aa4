"""What becomes of the columns of a user's rows: named, recognised, ignored, unused or refused."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pandas as pd  # type: ignore[import-untyped]
import pytest
import tomli_w
from embedkit_cli.data import app
from support.tiny_bert import MINILM
from typer.testing import CliRunner

from embedkit.data.manifests.manifest import load_manifest
from embedkit.data.pairs.records import Record, Records, open_records
from embedkit.errors import DataError, UserError

Row = dict[str, Any]
PAIR = {"q": "a", "answer": "A"}
NAMED = {"query": "q", "positive": "answer"}
FORM: dict[str, Callable[[Path, list[Row]], Records]] = {
    "rows": lambda _, rows: Records.from_rows(rows, columns=NAMED),
    "file": lambda folder, rows: Records.from_file(written(folder, rows), columns=NAMED),
    "dataset": lambda _, rows: Records.from_dataset(
        datasets.Dataset.from_list(rows), columns=NAMED
    ),
    "frame": lambda _, rows: Records.from_pandas(pd.DataFrame(rows), columns=NAMED),
    "manifest": lambda folder, rows: opened(folder, rows, columns=NAMED),
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDKIT_CACHE", str(tmp_path / "cache"))


def written(folder: Path, rows: list[Row]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def manifest_file(folder: Path, rows: list[Row], **keys: Any) -> Path:
    source = {"kind": "files", "files": [{"path": str(written(folder, rows))}]}
    path = folder / "mine.toml"
    path.write_text(tomli_w.dumps({"source": source, **keys}))
    return path


def opened(folder: Path, rows: list[Row], **keys: Any) -> Records:
    return open_records(load_manifest(str(manifest_file(folder, rows, **keys))))


@pytest.mark.parametrize(
    ("more", "negatives"),
    [
        ({"negatives": ["x", "y"]}, ("x", "y")),
        ({"negative": "x"}, ("x",)),
        ({"negative": ["x", "y"]}, ("x", "y")),
        ({"negative_10": "z", "negative_2": "y", "negative": "x"}, ("x", "y", "z")),
        ({"negative_1": "y", "negatives": ["x"], "negative_2": None}, ("x", "y")),
    ],
)
@pytest.mark.parametrize("form", FORM)
def test_naming_query_and_positive_leaves_negatives_and_labels_recognised(
    form: str, more: Row, negatives: tuple[str, ...], tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        records = FORM[form](tmp_path, [{**PAIR, **more, "label": "l"}])
    assert records[0] == Record("a", "A", negatives, "l")


def test_naming_the_negatives_leaves_query_positive_and_label_recognised() -> None:
    row = {"query": "a", "positive": "A", "wrong": "x", "label": 3}
    assert Records.from_rows([row], columns={"negatives": "wrong"})[0] == Record(
        "a", "A", ("x",), "3"
    )


def test_columns_of_negatives_may_be_there_in_some_rows_alone() -> None:
    rows: list[Row] = [PAIR, {**PAIR, "negative": "x"}, {**PAIR, "negatives": ["y"]}]
    records = Records.from_rows(rows, columns=NAMED)
    assert [each.negatives for each in records.take(range(3))] == [(), ("x",), ("y",)]


def test_a_column_that_is_named_plays_no_other_part() -> None:
    row: Row = {"q": "a", "label": "A", "negative": "x"}
    records = Records.from_rows([row], columns={"query": "q", "positive": "label"})
    assert records[0] == Record("a", "A", ("x",))
    row = {"q": "a", "negative": {"text": "A"}}
    records = Records.from_rows([row], columns={"query": "q", "positive": "negative.text"})
    assert records[0] == Record("a", "A")


@pytest.mark.parametrize(
    "name",
    [
        "neg_scores",
        "negation",
        "negative_a",
        "score",
        "Scores",
        "labels",
        "similarity",
        "is_duplicate",
    ],
)
@pytest.mark.parametrize("columns", [NAMED, {"query": ["q"], "positive": "answer", "label": "l"}])
def test_a_column_that_reads_like_a_part_of_training_is_used_or_refused(
    name: str, columns: dict[str, Any], tmp_path: Path
) -> None:
    row = {**PAIR, "l": 1, name: "x"}
    told = (
        rf"^rows: rows\.jsonl, line 1: nothing uses '{name}': give it a part in columns, or say "
        rf"that it is left out: ignore = \[\"{name}\"\]($|\. For objective\.kind = )"
    )
    path = written(tmp_path, [row])
    with pytest.raises(DataError, match=told):
        Records.from_file(path, columns=columns)
    assert len(Records.from_file(path, columns=columns, ignore=[name])) == 1


def test_naming_the_negatives_turns_off_the_recognition_of_others() -> None:
    row = {**PAIR, "negative_1": "x", "negative_2": "y"}
    with pytest.raises(
        DataError, match=r"nothing uses 'negative_2': .*ignore = \[\"negative_2\"\]"
    ):
        Records.from_rows([row], columns={**NAMED, "negatives": "negative_1"})


def test_all_columns_that_are_refused_are_in_one_line() -> None:
    row = {**PAIR, "neg_rank": "x", "rank": 1, "Labels": 2}
    told = r"nothing uses 'neg_rank', 'Labels': .* ignore = \[\"neg_rank\", \"Labels\"\]"
    with pytest.raises(DataError, match=told):
        Records.from_rows([row], columns=NAMED)


def test_what_the_filter_reads_is_used() -> None:
    rows = [{**PAIR, "score": 5}, {**PAIR, "score": 1}]
    assert len(Records.from_rows(rows, columns=NAMED, filter="score > 4")) == 1


def test_a_label_that_the_filter_reads_is_named_or_ignored() -> None:
    rows = [{**PAIR, "label": 1}, {**PAIR, "label": 0}]
    told = r"filter reads 'label', .*: set columns\.label = \"label\" .* ignore = \[\"label\"\]"
    with pytest.raises(DataError, match=told):
        Records.from_rows(rows, columns=NAMED, filter="label == 1")
    ignored = Records.from_rows(rows, columns=NAMED, filter="label == 1", ignore="label")
    named = Records.from_rows(rows, columns={**NAMED, "label": "label"}, filter="label == 1")
    assert (ignored[0].label, named[0].label) == (None, "1")
    assert len(ignored) == len(named) == 1


@pytest.mark.parametrize("ignore", ["negatives", ["negatives"]])
@pytest.mark.parametrize(
    "more", [{"negatives": ["x"]}, {"negative": "x"}, {"negative_1": "x", "negative_2": "y"}]
)
def test_ignored_negatives_are_none_whatever_their_columns_are_called(
    more: Row, ignore: str | list[str]
) -> None:
    records = Records.from_rows([{**PAIR, **more}], columns=NAMED, ignore=ignore)
    assert records[0] == Record("a", "A")
    assert records.negatives_per_query == 0


def test_one_column_of_negatives_may_be_ignored(tmp_path: Path) -> None:
    rows = [{**PAIR, "negative_1": "x", "negative_2": "y", "label": 7}]
    all_of_them = opened(tmp_path, rows, columns=NAMED)
    fewer = opened(tmp_path, rows, columns=NAMED, ignore=["negative_2", "label"])
    assert all_of_them[0] == Record("a", "A", ("x", "y"), "7")
    assert fewer[0] == Record("a", "A", ("x",))


@pytest.mark.parametrize("path", ["q", "q.text", "q[0]"])
def test_a_column_is_named_or_ignored_but_not_both(path: str) -> None:
    told = "rows: ignore lists 'q', but columns.query reads it: take it out of one of them"
    with pytest.raises(UserError, match=told):
        Records.from_rows([], columns={"query": path}, ignore=["q"])


def test_negatives_that_are_named_but_empty_are_refused() -> None:
    with pytest.raises(UserError, match=r'negatives names no column: .* ignore = \["negatives"\]'):
        Records.from_rows([], columns={"negatives": []})


def test_other_unused_columns_are_told_each_time_a_source_is_opened(tmp_path: Path) -> None:
    rows = [{**PAIR, "id": 1}, {**PAIR, "id": 2, "hard_negatives": ["x"]}]
    told = "mine: nothing uses the columns 'id', 'hard_negatives': give them a part in columns, or"
    for _ in range(2):
        with pytest.warns(UserWarning, match=told):
            opened(tmp_path, rows, columns=NAMED)
    with pytest.warns(UserWarning, match=told):
        Records.from_rows(rows, name="mine", columns=NAMED)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        opened(tmp_path, rows, columns=NAMED, ignore=["id", "hard_negatives"])


def test_rows_that_are_alike_are_told_of_by_their_own_columns() -> None:
    # The same pairs share their place in the cache.
    for name in ("first", "second"):
        with pytest.warns(UserWarning, match=f"nothing uses the columns '{name}'"):
            Records.from_rows([{**PAIR, name: 1}], columns=NAMED)


def test_pairs_by_label_recognise_nothing_besides() -> None:
    rows = [{"text": f"t{n}", "kind": "k", "positive": "p", "label": n} for n in range(3)]
    columns = {"query": "text", "label": "kind"}
    records = Records.from_rows(
        rows, columns=columns, same_label={"seed": 0}, ignore=["positive", "label"]
    )
    assert {each.label for each in records.take(range(3))} == {"k"}
    with pytest.raises(DataError, match="nothing uses 'label'"):
        Records.from_rows(rows, columns=columns, same_label={"seed": 0})


def test_holding_out_needs_the_concepts_of_recognised_negatives(tmp_path: Path) -> None:
    rows = [{"query": f"q{n}", "positive": "p", "id": n, "negative": "x"} for n in range(8)]
    held_out = {"share": 0.5, "tasks": [{"name": "t", "type": "retrieval"}]}
    keys: Row = {"columns": {"concept": "id"}, "held_out": held_out}
    told = r"line 1: held_out needs columns\.negative_concepts for the negatives in 'negative', or"
    with pytest.raises(DataError, match=told):
        opened(tmp_path, rows, **keys)
    assert len(opened(tmp_path, rows, **keys, ignore=["negatives"])) < 8
    concepts = [{**row, "negative_concepts": "z"} for row in rows]
    assert len(opened(tmp_path, concepts, **keys)) < 8
    concepts[1] |= {"negative": "", "negative_concepts": []}
    assert len(opened(tmp_path, concepts, **keys)) < 8
    concepts[2]["negative_concepts"] = []
    with pytest.raises(DataError, match="line 3: 1 negatives, but 0 concepts of negatives"):
        opened(tmp_path, concepts, **keys)


def test_data_check_tells_of_unused_columns_and_data_show_what_each_became(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    rows = [{**PAIR, "negative_1": "x", "negative_2": "y", "label": 3, "id": 7, "split": "train"}]
    path = manifest_file(tmp_path, rows, columns=NAMED, ignore=["id"])
    checked = CliRunner().invoke(app, ["check", str(path)])
    assert checked.exit_code == 0
    told = "warning: mine: nothing uses the columns 'split'"
    assert checked.output.startswith(f"{path}\tok\t1 rows\t{told}")
    shown = CliRunner().invoke(app, ["show", str(path), "--model", MINILM])
    assert shown.exit_code == 0
    lines = [line.strip("│ \n") for line in shown.output.splitlines()]
    first = next(n for n, line in enumerate(lines) if line.startswith("columns"))
    assert [line.removeprefix("columns").strip("│ ") for line in lines[first : first + 6]] == [
        "query: q",
        "positive: answer",
        "negatives: negative_1, negative_2",
        "label: label",
        "ignored: id",
        "unused: split",
    ]
