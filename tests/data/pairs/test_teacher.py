"""A teacher's scores of the documents of each row, from the columns to the batch."""

from typing import Any

import pytest
from support.tiny_bert import real_tokenizer

from embedkit.data.batch_sampler import BatchSampler, Source
from embedkit.data.pairs.contrastive_batches import Batches
from embedkit.data.pairs.records import Records
from embedkit.errors import DataError
from embedkit.recipe import Data

# The empty negative is left out, with its score.
LISTED = {"query": "a", "positive": "b", "negatives": ["c", "", "d"], "scores": [3, 1, 9, -2.5]}
APART = {
    "query": "a",
    "positive": "b",
    "negatives": ["c", "", "d"],
    "pos_scores": [3],
    "neg_scores": [1, 9, -2.5],
}


@pytest.mark.parametrize(
    ("row", "scores"), [(LISTED, "scores"), (APART, ["pos_scores", "neg_scores"])]
)
def test_scores_stand_beside_the_positive_and_each_negative(row: Any, scores: Any) -> None:
    records = Records.from_rows([row], columns={"scores": scores})
    assert records[0].negatives == ("c", "d")
    assert list(records[0].scores or ()) == [3.0, 1.0, -2.5]
    assert records.has_teacher
    assert not records.has_scores


def test_a_batch_has_the_score_of_each_document_that_is_drawn() -> None:
    negatives = [f"n{number}" for number in range(6)]
    rows = [
        {"query": f"q{row}", "positive": f"p{row}", "negatives": negatives}
        | {"scores": [100 + row, *(10 * row + number for number in range(6))]}
        for row in range(4)
    ]
    records = Records.from_rows(rows, columns={"scores": "scores"}, negatives_per_query=2)
    sampler = BatchSampler([Source("rows", 4, 4)], [1.0], steps=2, seed=0)
    data = Data.model_validate({"batch_size": 4, "mix": [{"manifest": "rows"}], "workers": 0})
    batches = Batches(sampler, [records], real_tokenizer(), data, seed=0)
    texts, teacher = batches.texts(1), batches[1].teacher
    assert teacher is not None
    assert len(teacher) == len(texts.documents) == 12
    for document, owner, score in zip(texts.documents, texts.owners, teacher, strict=True):
        row, number = int(texts.queries[owner][1:]), int(document[1:])
        assert score == (100 + row if document.startswith("p") else 10 * row + number)


def test_a_row_without_a_score_for_each_document_is_refused() -> None:
    message = "scores: has 2 scores for one positive and 3 negatives: give one for each, that of"
    with pytest.raises(DataError, match=message):
        Records.from_rows([LISTED | {"scores": [1, 2]}], columns={"scores": "scores"})
    with pytest.raises(
        DataError, match=r"scores is None, not a finite number: correct columns\.sc"
    ):
        Records.from_rows([LISTED | {"scores": [1, 2, None, 3]}], columns={"scores": "scores"})
