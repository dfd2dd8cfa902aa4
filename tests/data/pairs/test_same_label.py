import pytest

from embedkit.data.pairs.records import Record, Records
from embedkit.data.pairs.same_label import pairs
from embedkit.errors import DataError, UserError
from embedkit.storage import cache

TEXTS = [(f"text {number}", ["even", "odd"][number % 2]) for number in range(40)]


def test_every_text_is_one_query_and_one_positive_within_its_label() -> None:
    made = list(pairs(TEXTS, seed=0))
    assert sorted(text for text, _, _ in made) == sorted(text for text, _ in TEXTS)
    assert sorted(positive for _, positive, _ in made) == sorted(text for text, _ in TEXTS)
    label_of = dict(TEXTS)
    assert all(label_of[text] == label_of[positive] == label for text, positive, label in made)
    assert not any(text == positive for text, positive, _ in made)


def test_the_seed_decides_and_the_order_of_rows_does_not() -> None:
    assert list(pairs(TEXTS, seed=0)) == list(pairs(TEXTS[::-1], seed=0))
    assert set(pairs(TEXTS, seed=0)) != set(pairs(TEXTS, seed=1))


def test_a_text_that_repeats_counts_once_and_one_that_is_alone_makes_no_pair() -> None:
    texts = [("a", "x"), ("b", "x"), ("a", "x"), ("c", "y"), ("c", "y")]
    assert set(pairs(texts, seed=0)) == {("a", "b", "x"), ("b", "a", "x")}


def test_nothing_stays_on_disk() -> None:
    list(pairs(TEXTS, seed=0))
    assert not list((cache.root() / "labels").iterdir())


def test_rows_without_a_label_are_left_out() -> None:
    rows = [{"text": text, "kind": kind} for text, kind in (("a", 1), ("b", 1), ("c", None))]
    columns = {"query": "text", "label": "kind"}
    records = Records.from_rows(rows, columns=columns, same_label={"seed": 0})
    assert {records[0], records[1]} == {Record("a", "b", (), "1"), Record("b", "a", (), "1")}
    assert len(records) == 2


@pytest.mark.parametrize(
    "columns", [{"query": "text"}, {"query": "text", "label": "kind", "positive": "other"}]
)
def test_a_label_and_no_positive_are_asked_for(columns: dict[str, str]) -> None:
    with pytest.raises(UserError, match=r"same_label needs columns\.query and columns\.label"):
        Records.from_rows([], columns=columns, same_label={})


def test_a_text_that_is_no_unicode_is_told_in_one_line() -> None:
    rows = [{"text": "broken \ud800", "kind": "x"}]
    with pytest.raises(DataError, match=r"1: text is not valid Unicode .*: clean the data"):
        Records.from_rows(rows, columns={"query": "text", "label": "kind"}, same_label={})
