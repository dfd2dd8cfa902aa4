"""Pairs that score low as hard negatives of their queries."""

import json
from pathlib import Path
from typing import Any

import pytest

from embedkit.data.pairs.records import Record, Records, open_records
from embedkit.errors import DataError, UserError

ROWS = [
    {"query": "a", "positive": "far", "match": 0},
    {"query": "a", "positive": "near", "match": 1, "negatives": ["far off"]},
    {"query": "a", "positive": "farther", "match": 0},
    {"query": "a", "positive": "far", "match": 0},
    {"query": "b", "positive": "alone", "match": 0},
    {"query": "a", "positive": "nearer", "match": 1},
    {"query": "c", "positive": "both", "match": 1},
    {"query": "c", "positive": "both", "match": 0},
]
EXPECTED = [
    Record("a", "near", ("far off", "far", "farther")),
    Record("a", "nearer", ("far", "farther")),
    Record("c", "both"),
]
OPTIONS: dict[str, Any] = {"columns": {"score": "match"}, "negative_below": 0.5}


def test_low_pairs_become_negatives_of_their_query_and_the_rest_is_told() -> None:
    with pytest.warns(UserWarning, match="rows: 2 rows that score below negative_below are left"):
        records = Records.from_rows(ROWS, **OPTIONS)
    assert records.take(range(len(records))) == EXPECTED
    assert not records.has_scores
    assert records.negatives_given == 3


def test_a_manifest_says_so_each_time_it_is_opened(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    manifest = tmp_path / "judged.toml"
    scored = f'''[source]
kind = "files"
files = [{{ path = "{tmp_path}/rows.jsonl" }}]
[columns]
score = "match"
'''
    manifest.write_text(f"negative_below = 0.5\n{scored}")
    for _ in range(2):
        with pytest.warns(UserWarning, match="2 rows that score below negative_below"):
            assert open_records(manifest).take(range(3)) == EXPECTED
    manifest.write_text(scored)
    records = open_records(manifest)
    assert len(records) == len(ROWS)
    assert records.has_scores


def test_without_scores_it_is_refused() -> None:
    with pytest.raises(UserError, match=r"negative_below = 0\.5 needs columns\.score, which names"):
        Records.from_rows(ROWS, negative_below=0.5)


def test_a_column_of_scores_without_a_part_is_refused_with_all_remedies() -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "similarity": 1}]
    with pytest.raises(DataError) as told:
        Records.from_rows(rows)
    for remedy in (
        'ignore = ["similarity"]',
        'objective.kind = "cosent" or negative_below, set columns.score = "similarity"',
        'filter such as "similarity > 4"',
    ):
        assert remedy in str(told.value)
