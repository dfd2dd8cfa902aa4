"""What ``embedkit inspect`` says of a file, counted by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from embedkit_cli.app import app
from support.tiny_bert import MINILM, real_tokenizer
from typer.testing import CliRunner

import embedkit
from embedkit.data.inspect_data import Inspection, inspect
from embedkit.data.pairs.records import Records
from embedkit.errors import DataError


def inspected(folder: Path, rows: list[dict[str, Any]], **options: Any) -> Inspection:
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return inspect(path, real_tokenizer(), "tiny", **options)


def test_rows_are_counted_and_what_is_odd_is_said(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"question": "a", "answer": "A", "neg": ["x", "A"], "id": 1, "rating": 0.5},
        {"question": "a", "answer": "A", "neg": [], "id": 2, "rating": 1},
        {"question": "a", "answer": "B", "neg": ["x"], "id": 3, "rating": 1},
        {"question": "b", "answer": " ", "neg": None, "id": 4, "rating": 1},
        {"question": "ш" * 9, "answer": "ш" * 9, "neg": None, "id": 5, "rating": 1},
    ]
    found = inspected(tmp_path, rows)
    counts = found.findings
    assert (counts.rows, counts.pairs, dict(counts.empty)) == (5, 4, {"positive": 1})
    assert (counts.with_negatives, counts.negatives, counts.wrong_negatives) == (2, 3, 1)
    assert (len(counts.answers), len(counts.positives)) == (2, 3)
    assert (counts.repeated, counts.several_answers, counts.same_text) == (1, 1, 1)
    assert counts.scripts() == [("Cyrillic", 18 / 24), ("Latin", 6 / 24)]
    assert list(found.remarks()) == [
        "The column 'rating' holds numbers like scores; columns.score would read them.",
        "1 row has no text for the positive, and no pair: set drop_empty = true.",
        "1 pair is an earlier one again: deduplicate = true drops those.",
        "1 pair is of one text twice: there is nothing to learn in them.",
        "1 of 2 queries have several positives, which are never negatives of each other in a "
        "batch.",
        "1 negatives are their own row's positive.",
    ]
    line = f"{tmp_path}/rows.jsonl: query <- question, positive <- answer, negatives <- neg; "
    assert str(found) == f"{line}unused: id, rating; 4 rows"


def test_the_line_of_a_run_is_that_of_its_inspection(tmp_path: Path) -> None:
    rows = [{"question": "a", "title": "T", "text": "A", "id": 1}]
    with pytest.warns(UserWarning, match="nothing uses the columns 'id'"):
        records = Records.from_rows(rows, name="mine")
    assert (
        records.summary == "mine: query <- question, positive <- title + text; unused: id; 1 rows"
    )
    assert str(inspected(tmp_path, rows)).endswith(records.summary.removeprefix("mine"))


def test_positives_that_are_few_look_like_labels(tmp_path: Path) -> None:
    rows = [{"query": f"q{n}", "positive": f"class {n % 2}"} for n in range(60)]
    (remark,) = [each for each in inspected(tmp_path, rows).remarks() if "label" in each]
    assert remark.startswith("The positives are 2 distinct texts in 60 pairs, and look like labels")
    many = [{"query": f"q{n}", "positive": f"class {n}"} for n in range(60)]
    assert list(inspected(tmp_path, many).remarks()) == []


def test_texts_with_labels_are_shown_as_the_pairs_they_would_make(tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "label": n % 2} for n in range(8)]
    found = inspected(tmp_path, rows)
    assert found.findings.pairs == 8
    labels = {pair.query: int(pair.query[-1]) % 2 for pair in found.findings.examples}
    assert all(labels[pair.positive] == labels[pair.query] for pair in found.findings.examples)
    assert "query <- text, positive <- another text of the label, label <- label; 8 rows" in str(
        found
    )


def test_texts_that_the_model_would_cut_are_said(tmp_path: Path) -> None:
    rows = [{"query": "a", "positive": "word " * 600}, {"query": "b", "positive": "B"}]
    assert "25.0% of the texts are longer than 512 tokens, and will be cut." in list(
        inspected(tmp_path, rows).remarks()
    )


def test_columns_may_be_named_and_ignored(tmp_path: Path) -> None:
    rows = [{"question": "a", "context": "C", "answers": ["A", "B"], "score": 1}]
    with pytest.raises(DataError, match="'context' and 'answers' could each be the positive"):
        inspected(tmp_path, rows)
    found = inspected(tmp_path, rows, columns={"positive": "context"}, ignore=["answers"])
    assert [pair.positive for pair in found.findings.examples] == ["C"]
    assert next(iter(found.remarks())).startswith("Nothing uses the column 'score', which would")
    with pytest.raises(DataError, match=r"rows\.jsonl: has no rows"):
        inspected(tmp_path, [])


def test_the_command_prints_what_each_column_became_and_why(tmp_path: Path) -> None:
    path = tmp_path / "FAQ.CSV"
    path.write_text("Question;Answer;id\na;A;1\nb;B;2\n")
    environment = {"COLUMNS": "120"}
    words = ["inspect", str(path), "--model", MINILM]
    with pytest.warns(UserWarning, match="separated by semicolons"):
        result = CliRunner().invoke(app, words, env=environment)
    with pytest.warns(UserWarning, match="separated by semicolons"):
        named = CliRunner().invoke(
            app, [*words, "--column", "positive=id", "--ignore", "Answer"], env=environment
        )
    assert result.exit_code == named.exit_code == 0
    cells = [[cell.strip() for cell in line.split("│")] for line in result.output.splitlines()]
    rows = [row[1:4] for row in cells if len(row) == 5]
    assert rows[:3] == [
        ["Question", "query", "by its name"],
        ["Answer", "positive", "by its name"],
        ["id", "unused", "its name stands for no part"],
    ]
    assert "columns names it" in named.output
    assert "ignore lists it" in named.output
    with pytest.warns(UserWarning, match="separated by semicolons"):
        assert embedkit.inspect(path, model=MINILM).findings.pairs == 2
