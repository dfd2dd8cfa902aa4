"""Token counts of a source: of all its texts, kept and resumed, or of a sample."""

from collections import Counter

import numpy as np
import pytest
from support.tiny_bert import MINILM

from embedkit.data.pairs import lengths
from embedkit.data.pairs.lengths import Lengths, all_lengths, quantiles, sampled_lengths
from embedkit.data.pairs.records import Records
from embedkit.models.hub import load_tokenizer
from embedkit.storage import cache

WORDS = "amber birch cedar delta ember fjord grove heron " * 4
TOKENIZER = load_tokenizer(MINILM)


@pytest.fixture(autouse=True)
def _few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "_CHARACTERS", 2**14)


def records(count: int = 300, negatives: int = 1) -> Records:
    rows = (
        {
            "query": f"{row} {WORDS[: row % 90]}",
            "positive": f"{WORDS * (1 + row % 3)}",
            "negatives": [f"{row}"] * (negatives if row % 2 else 0),
        }
        for row in range(count)
    )
    return Records.from_rows(
        rows, prompts={"query": "one two: "}, columns={"negatives": "negatives"}
    )


def counted(texts: list[str]) -> list[int]:
    return [len(each) for each in TOKENIZER(texts, verbose=False)["input_ids"]]


def test_every_text_is_counted_behind_its_prompt() -> None:
    source = records()
    found = all_lengths(source, TOKENIZER)
    rows = source.take(range(len(source)))
    expected = {
        "query": counted([f"one two: {each.query}" for each in rows]),
        "positive": counted([each.positive for each in rows]),
        "negatives": counted([text for each in rows for text in each.negatives]),
    }
    assert found.rows == 300
    assert found.counts.keys() == expected.keys()
    for role, every in expected.items():
        assert found.counts[role] == Counter(every)


def test_a_role_without_texts_has_no_counts() -> None:
    assert all_lengths(records(10, negatives=0), TOKENIZER).counts.keys() == {"query", "positive"}


def test_an_interrupted_count_goes_on_where_it_was_and_a_finished_one_is_kept() -> None:
    source, told = records(), list[int]()

    def interrupt(rows: int) -> None:
        told.append(rows)
        if len(told) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        all_lengths(source, TOKENIZER, interrupt)
    before = told.copy()
    again = all_lengths(source, TOKENIZER, told.append)
    assert told[2] > before[1] > before[0]
    assert told[-1] == 300
    told.clear()
    kept = all_lengths(source, TOKENIZER, told.append)
    assert not told
    cache_of_another = all_lengths(source.renamed("other"), TOKENIZER)
    assert kept.counts == cache_of_another.counts == again.counts
    assert len([each for each in (cache.root() / "lengths").iterdir() if each.is_dir()]) == 1


def test_other_prompts_are_counted_anew() -> None:
    rows = [{"query": "a b", "positive": "c"}]
    short, long = (Records.from_rows(rows, prompts={"query": each}) for each in ("", "x y: "))
    assert max(all_lengths(short, TOKENIZER).counts["query"]) == 4
    assert max(all_lengths(long, TOKENIZER).counts["query"]) == 7


def test_a_sample_is_spread_over_the_source() -> None:
    rows = [{"query": "a " * number, "positive": "p"} for number in range(1, 101)]
    found = sampled_lengths(Records.from_rows(rows), TOKENIZER, 10)
    assert found.rows == 10
    # Rows 0, 11, ..., 99, of 1, 12, ..., 100 words between two special tokens.
    assert sorted(found.counts["query"]) == [*range(3, 103, 11)]


def test_quantiles_are_lengths_that_occur() -> None:
    texts = np.random.default_rng(0).integers(1, 500, size=997)
    levels = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
    expected = np.quantile(texts, levels, method="higher")
    found = quantiles(Counter(texts.tolist()))
    np.testing.assert_array_equal([found[level] for level in levels], expected)


def test_the_truncated_share_is_of_all_texts_by_their_own_limit() -> None:
    found = {"query": [4, 5, 6], "positive": [9, 9, 9], "negatives": [11, 10]}
    measured = Lengths(3, {role: Counter(lengths) for role, lengths in found.items()})
    assert measured.truncated(5, 10) == pytest.approx(2 / 8)
    assert measured.truncated(6, 8) == pytest.approx(5 / 8)
    assert measured.truncated(50, 80) == 0
