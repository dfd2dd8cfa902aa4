"""Columns of every layout that people have, recognised by their names and values."""

from pathlib import Path
from typing import Any

import pytest

from embedkit.data.manifests.columns import Columns
from embedkit.data.pairs.recognition import recognised
from embedkit.data.pairs.records import Record, Records
from embedkit.errors import DataError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDKIT_CACHE", str(tmp_path / "cache"))


PAIR = [Record("a", "A")]
LAYOUTS: list[tuple[dict[str, Any], list[Record]]] = [
    ({"query": "a", "positive": "A"}, PAIR),
    ({"anchor": "a", "positive": "A", "negative": "x"}, [Record("a", "A", ("x",))]),
    ({"Anchor": "a", "Positive": "A", "Negative 1": "x"}, [Record("a", "A", ("x",))]),
    ({"question": "a", "answer": "A"}, PAIR),
    ({"QUESTION": "a", "ANSWER": "A"}, PAIR),
    ({"question": "a", "answers": ["A", "B"]}, [*PAIR, Record("a", "B")]),
    ({"sentence1": "a", "sentence2": "A"}, PAIR),
    ({"Sentence-1": "a", "sentence_2": "A"}, PAIR),
    ({"question1": "a", "question2": "A"}, PAIR),
    ({"premise": "a", "hypothesis": "A"}, PAIR),
    ({"query": "a", "pos": ["A", "B"], "neg": ["x", "y"]},
     [Record("a", "A", ("x", "y")), Record("a", "B", ("x", "y"))]),
    ({"query": "a", "pos": "A", "neg_2": "y", "neg-1": "x"}, [Record("a", "A", ("x", "y"))]),
    ({"prompt": "a", "chosen": "A", "rejected": "x"}, [Record("a", "A", ("x",))]),
    ({"title": "a", "body": "A"}, PAIR),
    ({"title": "a", "text": "A"}, PAIR),
    ({"query": "a", "text": "A"}, PAIR),
    ({"query": "a", "title": "T", "text": "A"}, [Record("a", "T A")]),
    ({"title": "a", "answer": "A"}, PAIR),
]  # fmt: skip


@pytest.mark.parametrize(("row", "expected"), LAYOUTS)
def test_a_layout_is_read_and_a_manifest_that_names_its_columns_reads_the_same(
    row: dict[str, Any], expected: list[Record]
) -> None:
    read = Records.from_rows([row])
    assert read.take(range(len(read))) == expected
    columns = recognised(row, [row]).columns
    named = Records.from_rows([row], columns=columns.model_dump(exclude_defaults=True))
    assert named.take(range(len(named))) == expected
    assert named.layout.columns == {k: [*v] for k, v in columns.paths().items()}


@pytest.mark.filterwarnings("ignore:rows. nothing uses")
def test_a_column_that_is_called_like_its_part_comes_first() -> None:
    row = {"query": "a", "anchor": "b", "positive": "A", "answer": "B", "document": "C"}
    assert Records.from_rows([row])[0] == PAIR[0]
    assert set(recognised(row).unused) == {"anchor", "answer", "document"}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"question": "a", "prompt": "b", "answer": "A"},
         r"'question' and 'prompt' could each be the query: .* columns.query = \"question\".*"
         r"ignore = \[\"prompt\"\]"),
        ({"question": "a", "context": "A", "answers": ["B"]},
         r"'context' and 'answers' could each be the positive"),
        ({"title": "a", "text": "A", "content": "B"},
         r"'text' and 'content' could each be the positive"),
        ({"Query": "a", "QUERY": "b", "positive": "A"}, "'Query' and 'QUERY' could each be"),
    ],
)  # fmt: skip
def test_two_columns_for_one_part_are_refused_by_name(row: dict[str, Any], told: str) -> None:
    with pytest.raises(DataError, match=told):
        Records.from_rows([row])
    with pytest.raises(DataError, match=told):
        recognised(row, [row])


def test_naming_or_ignoring_one_of_two_candidates_settles_it() -> None:
    row = {"question": "a", "context": "A", "answers": ["B"]}
    named = Records.from_rows([row], columns={"positive": "answers[]"}, ignore=["context"])
    assert named[0] == Record("a", "B")
    assert Records.from_rows([row], ignore=["answers"])[0] == Record("a", "A")
    found = recognised(row, [row], Columns(positive=("context",)))
    assert (found.columns.query, found.unused) == (("question",), ("answers",))


@pytest.mark.parametrize("label", [0, 1, "1", True])
def test_a_label_of_zeros_and_ones_is_a_judgement_and_no_class(label: Any) -> None:
    rows = [{"query": "a", "positive": "A", "label": each} for each in (label, None, label)]
    told = "'label' says whether the two texts match .* filter = 'label == 1' .* columns.score = "
    with pytest.raises(DataError, match=told):
        Records.from_rows(rows)
    with pytest.raises(DataError, match=told):
        recognised(rows[0], rows)
    assert Records.from_rows(rows, columns={"label": "label"})[0].label == str(label)
    assert Records.from_rows(rows, ignore=["label"])[0] == PAIR[0]
    classes = Records.from_rows([*rows, {**rows[0], "label": 2}])
    assert classes[3].label == "2"


@pytest.mark.parametrize("label", ["entailment", 2, 0])
@pytest.mark.parametrize("names", [("premise", "hypothesis"), ("sentence1", "sentence2")])
def test_a_label_of_two_compared_texts_is_never_a_class_unasked(
    names: tuple[str, str], label: Any
) -> None:
    row = {names[0]: "a", names[1]: "A", "label": label}
    with pytest.raises(DataError, match="'label' says how the two texts relate"):
        Records.from_rows([row])
    assert Records.from_rows([row], ignore=["label"])[0] == PAIR[0]


def test_a_judgement_may_be_filtered_by_or_read_as_a_score() -> None:
    rows = [{"sentence1": f"a{n}", "sentence2": f"A{n}", "label": n} for n in (1, 0)]
    kept = Records.from_rows(rows, filter="label == 1", ignore=["label"])
    assert kept.take(range(len(kept))) == [Record("a1", "A1")]
    scored = Records.from_rows(rows, columns={"score": "label"})
    assert [each.score for each in scored.take(range(2))] == [1, 0]


def test_texts_with_labels_are_told_how_to_become_pairs() -> None:
    rows = [{"text": f"t{n}", "label": n % 2} for n in range(4)]
    told = r'columns = \{ query = "text", label = "label" \} and same_label = \{ seed = 0 \}'
    with pytest.raises(DataError, match=told):
        Records.from_rows(rows)
    found = recognised(rows[0], rows)
    assert found.same_label
    assert found.columns.model_dump(exclude_defaults=True) == {"query": ("text",), "label": "label"}
    assert found.reasons["positive"] == "another text of the label"
    pairs = Records.from_rows(rows, columns=found.columns, same_label={"seed": 0})
    assert len(pairs) == 4


def test_what_has_no_part_is_named_with_its_remedy() -> None:
    with pytest.raises(
        DataError, match=r"no column 'query' \(there are 'a', 'b'\), .*columns.query"
    ):
        Records.from_rows([{"a": "x", "b": "y"}])
    row = {"question": "a", "answer": "A", "id": 1, "pos_scores": [1], "similarity": 0.5}
    found = recognised(row, [row])
    assert found.unused == ("id", "pos_scores", "similarity")
    assert found.scores == found.telling == ("pos_scores", "similarity")
    assert found.reasons == {"query": "by its name", "positive": "by its name"}


def test_a_cell_of_csv_spells_a_list_in_json(tmp_path: Path) -> None:
    path = tmp_path / "FAQ.CSV"
    path.write_text('query,pos,neg\na,"[""A"", ""B""]","[""x"", null, ""y""]"\nb,C,z\nc,[D],[]\n')
    records = Records.from_file(path)
    xy = ("x", "y")
    expected = [Record("a", "A", xy), Record("a", "B", xy), Record("b", "C", ("z",))]
    assert records.take(range(4)) == [*expected, Record("c", "[D]")]
    named = Records.from_file(
        path, columns={"positive": "pos[]"}, filter='query == "a"', ignore=["neg"]
    )
    assert named.take(range(2)) == [Record("a", "A"), Record("a", "B")]
    path.write_text("query,pos,neg\na,A,\"['x', 'y']\"\n")
    with pytest.raises(DataError, match="is a list as Python prints it: write it as JSON"):
        Records.from_file(path)


def test_text_of_json_lines_is_text_even_if_it_looks_like_a_list() -> None:
    row = {"query": "a", "positive": '["A"]', "negatives": ['["x"]']}
    assert Records.from_rows([row])[0] == Record("a", '["A"]', ('["x"]',))
