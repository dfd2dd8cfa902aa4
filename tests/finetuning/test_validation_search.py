from typing import Any

import numpy as np
import pytest
import pytrec_eval
from mteb._evaluators.retrieval_metrics import calculate_retrieval_scores
from numpy.typing import NDArray

from embedkit.data.pairs.records import Records
from embedkit.finetuning.validation_search import Search, ndcg, search_of
from embedkit.recipe import Validation

SETTINGS = Validation(share=0.1)


def searched(rows: list[dict[str, Any]], seed: int = 0, **settings: Any) -> Search:
    found = search_of(Records.from_rows(rows, name="rows"), Validation(share=0.1, **settings), seed)
    assert found is not None
    return found


def answers(search: Search) -> dict[str, set[str]]:
    return {
        query: {text for text, is_one in zip(search.documents, row, strict=True) if is_one}
        for query, row in zip(search.queries, search.relevant, strict=True)
    }


def judged(scores: NDArray[Any], relevant: NDArray[Any]) -> tuple[Any, Any]:
    """Qrels and a run as trec_eval reads them."""
    qrels = {
        f"q{query}": {f"d{document}": 1 for document in np.flatnonzero(row).tolist()}
        for query, row in enumerate(relevant)
    }
    run = {
        f"q{query}": {f"d{document}": float(value) for document, value in enumerate(row)}
        for query, row in enumerate(scores)
    }
    return qrels, run


@pytest.mark.parametrize("documents", [4, 10, 60])
def test_ndcg_is_that_of_pytrec_eval_and_mteb(documents: int) -> None:
    rng = np.random.default_rng(documents)
    scores, relevant = rng.normal(size=(30, documents)), rng.random((30, documents)) < 0.3
    relevant[:, 0] |= ~relevant.any(axis=1)
    qrels, run = judged(scores, relevant)
    found = ndcg(scores, relevant)
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10"}).evaluate(run)
    expected = [theirs[f"q{query}"]["ndcg_cut_10"] for query in range(30)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    _, means, *_ = calculate_retrieval_scores(run, qrels, [10])
    assert found.mean() == pytest.approx(means["NDCG@10"], abs=6e-6)


def test_every_positive_of_a_query_answers_it_and_negatives_are_searched_too() -> None:
    search = searched(
        [
            {"query": "a", "positive": "one", "negatives": ["four"]},
            {"query": "A", "positive": "two", "negatives": []},
            {"query": "b", "positive": "ONE", "negatives": ["two"]},
        ]
    )
    found = {
        query.lower(): {text.lower() for text in texts} for query, texts in answers(search).items()
    }
    assert found == {"a": {"one", "two"}, "b": {"one"}}
    assert sorted(text.lower() for text in search.documents) == ["four", "one", "two"]


def test_a_label_s_texts_answer_each_other_and_none_finds_itself() -> None:
    rows = [
        {"query": "a", "positive": "b", "label": "x"},
        {"query": "b", "positive": "c", "label": "x"},
        {"query": "d", "positive": "e", "label": "y"},
    ]
    search = searched(rows)
    assert answers(search) == {"a": {"b", "c"}, "b": {"c"}, "d": {"e"}}
    own = search.hidden[search.queries.index("b")]
    assert [text for text, is_own in zip(search.documents, own, strict=True) if is_own] == ["b"]
    assert search.hidden.sum() == 1


def test_no_search_is_made_of_rows_whose_query_is_their_positive() -> None:
    same = Records.from_rows([{"query": "a", "positive": "A"}], name="rows")
    assert search_of(same, SETTINGS, 0) is None


def test_bounds_keep_every_answer_and_draws_follow_the_seed() -> None:
    rows = [{"query": f"q{row}", "positive": f"p{row}"} for row in range(200)]
    search = searched(rows, max_queries=20, max_documents=50)
    assert (len(search.queries), len(search.documents)) == (20, 50)
    assert answers(search) == {query: {f"p{query[1:]}"} for query in search.queries}
    assert searched(rows, max_queries=20, max_documents=50).documents == search.documents
    other = searched(rows, seed=1, max_queries=20, max_documents=50)
    assert set(other.queries) != set(search.queries)
    assert len(searched(rows, max_queries=50, max_documents=10).queries) == 10


class Fixed:
    """An encoder of known vectors, which notes the prompts it is asked for."""

    def __init__(self, vectors: dict[str, list[float]]) -> None:
        self.vectors = vectors
        self.prompts: list[str] = []

    def encode(self, texts: list[str], *, prompt: str) -> NDArray[np.float32]:
        self.prompts.append(prompt)
        return np.array([self.vectors[text] for text in texts], dtype=np.float32)


def test_a_query_is_scored_without_its_own_text_behind_the_prompts_of_its_source() -> None:
    rows = [{"query": "a", "positive": "b"}, {"query": "b", "positive": "c"}]
    source = Records.from_rows(rows, name="rows", prompts={"query": "q: ", "document": "d: "})
    search = search_of(source, SETTINGS, 0)
    assert search is not None
    # "b" is nearest to itself, then to "c"; "a" is nearest to "c", then to "b".
    encoder = Fixed({"a": [0.6, 0.8], "b": [1.0, 0.0], "c": [0.1, 0.99]})
    found = search.ndcg_at_10(encoder)  # type: ignore[arg-type]
    assert found == pytest.approx((1 + 1 / np.log2(3)) / 2)
    assert encoder.prompts == ["q: ", "d: "]
