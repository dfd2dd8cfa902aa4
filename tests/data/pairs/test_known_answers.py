import json
import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedkit
from embedkit.data.pairs import known_answers
from embedkit.data.pairs.known_answers import KnownAnswers, open_known_answers, text_hash
from embedkit.data.pairs.records import Records
from embedkit.data.pairs.table import Sample


def drawn(rows: int, queries: int, answers: int) -> list[dict[str, str]]:
    numbers = np.random.default_rng(rows).integers([queries, answers], size=(rows, 2))
    return [{"query": f"q{query}", "positive": f"a{answer}"} for query, answer in numbers]


def pairs_of(known: KnownAnswers, *queries: str) -> set[tuple[int, int]]:
    found = known.of(np.array([text_hash(query) for query in queries], dtype=np.int64))
    pairs = [(int(query), int(answer)) for query, answer in found]
    assert len(pairs) == len(set(pairs))
    return set(pairs)


def test_every_answer_of_a_query_with_several_is_known() -> None:
    # Many of the rows are equal.
    rows = drawn(3000, 700, 12)
    expected = defaultdict(set)
    for row in rows:
        expected[row["query"]].add((text_hash(row["query"]), text_hash(row["positive"])))
    known = Records.from_rows(rows).known_answers
    assert {len(answers) for answers in expected.values()} >= {1, 2, 5}
    for query, answers in expected.items():
        assert pairs_of(known, query) == (answers if len(answers) > 1 else set())
    asked = ["q3", "q5", "q3", "unknown"]
    assert pairs_of(known, *asked) == pairs_of(known, "q3") | pairs_of(known, "q5")
    several = [len(answers) for answers in expected.values() if len(answers) > 1]
    assert len(known) == sum(several)


def test_a_source_of_single_answers_knows_none() -> None:
    known = Records.from_rows([{"query": f"q{n}", "positive": "a"} for n in range(5)]).known_answers
    assert len(known) == 0
    assert pairs_of(known, "q1", "q2") == set()


def test_every_answer_of_a_row_and_white_space_at_the_ends_count() -> None:
    rows = [{"q": "who", "answers": ["he", " she "]}, {"q": "who ", "answers": ["they"]}]
    records = Records.from_rows(rows, columns={"query": "q", "positive": "answers[]"})
    pairs = {(text_hash("who"), text_hash(answer)) for answer in ("he", "she", "they")}
    assert pairs_of(records.known_answers, "who") == pairs


def test_a_sample_knows_the_answers_of_all_rows() -> None:
    records = Records.from_rows(drawn(300, 20, 9))
    sample = open_known_answers("sample", Sample(records.table.path, 3, seed=0))
    assert pairs_of(sample, "q1") == pairs_of(records.known_answers, "q1")


def test_answers_are_hashed_once_and_pickle_as_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    records = Records.from_rows(drawn(200, 20, 9))
    known = records.known_answers
    monkeypatch.setattr(known_answers, "text_hash", None)
    again = open_known_answers("again", records.table)
    assert len(pickle.dumps(records)) < 5000
    copies = [pickle.loads(pickle.dumps(each)) for each in (known, again)]
    assert [pairs_of(copy, "q1") for copy in copies] == [pairs_of(known, "q1")] * 2


def rows_of_several() -> list[dict[str, Any]]:
    """Four answers to each question, one of which is another row's hard negative."""
    return [
        {"query": f"q{n // 4}", "positive": f"p{n}", "negative": f"p{4 * (n // 4) + (n + 1) % 4}"}
        for n in range(32)
    ]


@pytest.mark.parametrize(("known", "masked"), [("batch", False), ("source", True)])
def test_a_run_goes_by_the_answers_of_its_batch_or_its_source(
    known: str, masked: bool, small_recipe: Path, tmp_path: Path
) -> None:
    settings = ("steps=4", "optim.warmup_steps=1", "data.batch_size=2", "data.workers=1")
    mix = 'data.mix=[{manifest = "given"}]'
    choice = f"objective.known_answers={known}"
    recipe = embedkit.load_recipe(str(small_recipe), [mix, choice, *settings])
    sources = {"given": Records.from_rows(rows_of_several())}
    embedkit.finetune(recipe, tmp_path / "run", sources=sources)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").open()]
    if masked:
        # Each row's own hard negative answers its query, and may be in the batch twice.
        assert all(line["masked_text"] >= 1 for line in lines)
    else:
        assert min(line["masked_text"] for line in lines) < 1
