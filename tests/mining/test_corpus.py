import tracemalloc
from typing import Any

import numpy as np

from embedkit.data.pairs.records import Records
from embedkit.mining.corpus import Corpus, Exclusions, Side, open_corpus

ROWS: list[dict[str, Any]] = [
    {"query": "heart attack", "positive": "Myocardial infarction", "negatives": ["Angina"]},
    {"query": "Heart  Attack", "positive": "MI", "negatives": []},
    {"query": "angina", "positive": "Chest pain", "negatives": ["MYOCARDIAL INFARCTION", "Gout"]},
]


def corpus_of(rows: list[dict[str, Any]]) -> Corpus:
    return open_corpus(Records.from_rows(rows))


def all_texts(side: Side) -> list[str]:
    return side.texts(np.arange(len(side)))


def excluded(corpus: Corpus) -> dict[str, set[str]]:
    """By query, what it excludes of all documents."""
    queries, documents = all_texts(corpus.queries), all_texts(corpus.documents)
    numbers = np.tile(np.arange(len(documents)), (len(queries), 1))
    mask = Exclusions(corpus)(np.arange(len(queries)), numbers)
    return {
        query: {text for text, out in zip(documents, row, strict=True) if out}
        for query, row in zip(queries, mask, strict=True)
    }


def test_texts_that_differ_in_case_or_white_space_are_one() -> None:
    corpus = corpus_of(ROWS)
    assert all_texts(corpus.queries) == ["heart attack", "angina"]
    assert all_texts(corpus.documents) == [
        "Myocardial infarction",
        "Angina",
        "MI",
        "Chest pain",
        "Gout",
    ]
    assert corpus.query_of.tolist() == [0, 0, 1]
    assert corpus.document_of.tolist() == [0, 2, 3]


def test_a_query_excludes_all_of_its_positives_and_its_own_text() -> None:
    assert excluded(corpus_of(ROWS)) == {
        "heart attack": {"Myocardial infarction", "MI"},
        "angina": {"Chest pain", "Angina"},
    }


def test_a_query_excludes_the_positives_of_its_labels() -> None:
    labelled = [
        {"query": "a", "positive": "one", "label": "x"},
        {"query": "b", "positive": "two", "label": "x"},
        {"query": "c", "positive": "three", "label": "y"},
        {"query": "c", "positive": "four", "label": "x"},
        {"query": "d", "positive": "five"},
    ]
    assert excluded(corpus_of(labelled)) == {
        "a": {"one", "two", "four"},
        "b": {"one", "two", "four"},
        "c": {"one", "two", "three", "four"},
        "d": {"five"},
    }


def test_a_query_of_many_labels_costs_the_others_no_memory() -> None:
    rows: list[dict[str, Any]] = [
        {"query": "many", "positive": f"of {n}", "label": f"label {n}"} for n in range(2000)
    ]
    rows += [{"query": f"query {n}", "positive": f"answer {n}", "label": "x"} for n in range(2000)]
    corpus = corpus_of(rows)
    tracemalloc.start()
    exclusions = Exclusions(corpus)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # A list of equal length for each query would be 32 MB.
    assert taken < 2e6
    assert exclusions(np.array([0, 1]), np.array([[5, 2001], [5, 2001]])).tolist() == [
        [True, False],
        [False, True],
    ]


def test_it_is_known_how_many_documents_a_query_excludes() -> None:
    exclusions = Exclusions(corpus_of(ROWS[:2]))
    assert exclusions.count(np.array([0])) == 2
    assert exclusions.count(np.array([], dtype=np.int64)) == 0


def test_other_rows_are_another_identity() -> None:
    first, again, other = (corpus_of(rows) for rows in (ROWS, ROWS, ROWS[:2]))
    assert first.documents.identity == again.documents.identity
    assert first.documents.identity != other.documents.identity
    assert first.documents.identity != first.queries.identity
