import pickle
from typing import Any

import numpy as np
import pytest

from embedkit.data.pairs.records import Records
from embedkit.data.pairs.table import Part, Sample, Table
from embedkit.data.pairs.validation_rows import divided, rows_with_a_text_of
from embedkit.errors import DataError

ROWS = 3000


def records(rows: list[dict[str, Any]], name: str = "rows") -> Records:
    return Records.from_rows(rows, name=name)


@pytest.fixture
def numbered() -> Records:
    """Every document answers two queries, once in capitals."""
    rows = [
        {"query": f"q{row}", "positive": f"{'Text' if row % 2 else 'text'} {row // 2}"}
        for row in range(ROWS)
    ]
    return records(rows)


def queries(of: Records) -> list[str]:
    return [query for (query,) in of.table.scan(("query",))]


def test_a_document_is_in_one_part_with_all_of_its_rows(numbered: Records) -> None:
    (training,), (validation,) = divided([numbered], 0.1)
    documents = [
        {row.positive.lower() for row in part.take(range(len(part)))}
        for part in (training, validation)
    ]
    assert not documents[0] & documents[1]
    assert len(documents[0] | documents[1]) == ROWS // 2
    assert len(validation) == 2 * len(documents[1])
    # Five standard deviations of a draw of 1,500 documents.
    assert len(documents[1]) == pytest.approx(150, abs=60)
    assert sorted([*queries(training), *queries(validation)]) == sorted(queries(numbered))
    assert training.fingerprint != numbered.fingerprint != validation.fingerprint


def test_a_smaller_share_is_part_of_a_larger_and_the_same_text_falls_alike_in_every_source(
    numbered: Records,
) -> None:
    _, (small,) = divided([numbered], 0.05)
    other = records([{"query": "?", "positive": f"TEXT  {row}"} for row in range(ROWS // 2)])
    _, (large, elsewhere) = divided([numbered, other], 0.2)
    assert set(queries(small)) < set(queries(large))
    held = {row.positive.lower() for row in large.take(range(len(large)))}
    theirs = {
        " ".join(row.positive.lower().split()) for row in elsewhere.take(range(len(elsewhere)))
    }
    assert theirs == held


def test_a_share_without_rows_is_refused_and_a_source_without_stays_whole() -> None:
    few = records([{"query": "q", "positive": "p"}], "few")
    with pytest.raises(DataError, match=r"validation\.share = 0\.01: none of the 1 rows"):
        divided([few], 0.01)
    many = records([{"query": "q", "positive": f"p{row}"} for row in range(500)], "many")
    (whole, _), (validation,) = divided([few, many], 0.01)
    assert whole is few
    assert validation.name == "many"


def test_training_rows_that_have_a_validation_text_in_any_part_are_counted() -> None:
    validation = records([{"query": "Who  asks", "positive": "the answer"}])
    training = records(
        [
            {"query": "who asks", "positive": "another"},
            {"query": "a", "positive": "b", "negatives": ["c", "THE answer"]},
            {"query": "the answer", "positive": "d"},
            {"query": "the answer is", "positive": "e"},
        ]
    )
    assert rows_with_a_text_of([validation], [training]) == 3


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("listed", [True, False])
def test_a_part_reads_its_rows_at_random_in_order_and_after_a_pickle(
    listed: bool, sampled: bool, numbered: Records
) -> None:
    whole: Table = Sample(numbered.table.path, 2500, 7) if sampled else numbered.table
    rows = np.flatnonzero(np.random.default_rng(0).random(len(whole)) < 0.3)
    part = Part(whole, rows, listed=listed)
    everything = [query for (query,) in whole.scan(("query",))]
    chosen = set(rows.tolist())
    expected = [text for row, text in enumerate(everything) if (row in chosen) == listed]
    assert len(part) == len(expected)
    for each in (part, pickle.loads(pickle.dumps(part))):
        assert [query for (query,) in each.scan(("query",))] == expected
        shuffled = np.random.default_rng(1).permutation(len(part)).tolist()
        taken = [query for (query,) in each.take(shuffled, ("query",))]
        assert taken == [expected[row] for row in shuffled]
        assert each.facts == part.facts
        with pytest.raises(IndexError):
            list(each.take([len(part)], ("query",)))
    assert part.facts.content != Part(whole, rows[1:], listed=listed).facts.content
