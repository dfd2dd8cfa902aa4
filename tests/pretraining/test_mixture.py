from typing import Any

import pytest
from rich.console import Console
from support.ranks import run_on_ranks
from support.tiny_bert import real_tokenizer
from transformers import PreTrainedTokenizerBase

from embedkit.data.text.texts import Texts
from embedkit.errors import DataError, UserError
from embedkit.pretraining.mixture import TextMixture, open_text_mixture
from embedkit.recipe import PretrainRecipe


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return real_tokenizer()


def texts(count: int, word: str = "word", **options: Any) -> Texts:
    """Documents of 2 to 21 words."""
    return Texts.from_rows(
        (f"{number} " + f"{word} " * (1 + number % 20) for number in range(count)), **options
    )


def recipe_over(*mix: dict[str, Any], **data: Any) -> PretrainRecipe:
    return PretrainRecipe.model_validate(
        {
            "steps": 10,
            "model": {"tokenizer": "starter"},
            "data": {
                "mix": mix,
                "max_tokens": 16,
                "batch_tokens": 128,
                "draw_rows": 4,
                **data,
            },
            "objective": {"kind": "masked_lm"},
            "held_out": {"rows": 5},
            "optim": {"lr": 1e-3},
        }
    )


def test_without_weights_a_source_comes_up_by_its_rows(tokenizer: PreTrainedTokenizerBase) -> None:
    given = {"a": texts(90), "b": texts(30, "other")}
    mixture = open_text_mixture(recipe_over({"manifest": "a"}, {"manifest": "b"}), tokenizer, given)
    assert [each.name for each in mixture.sources] == ["a", "b"]
    assert [len(each.rows) for each in mixture.sources] == [90, 30]
    assert mixture.shares == [0.75, 0.25]
    assert len(mixture.batches) == 10
    assert mixture.batches[9].rows == 8


def test_a_view_by_length_is_a_source_of_its_own_over_the_same_ids(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    mix = [
        {"manifest": "a", "weight": 0.2},
        {"manifest": "a", "weight": 0.8, "min_tokens": 15},
    ]
    mixture = open_text_mixture(recipe_over(*mix), tokenizer, {"a": texts(100)})
    whole, long = mixture.sources
    assert (whole.name, long.name) == ("a", "a+15")
    # One number, the words, [CLS] and [SEP]: 12 words or more of 20.
    assert (len(whole.rows), len(long.rows)) == (100, 45)
    assert whole.tokenized is long.tokenized
    assert mixture.shares == [0.2, 0.8]
    assert list(mixture.fingerprints) == ["a", "a+15"]


def test_what_is_held_out_is_measured_and_never_trained_on(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    given = {"a": texts(200, held_out={"share": 0.2}), "b": texts(30, "other")}
    recipe = recipe_over({"manifest": "a"}, {"manifest": "b"})
    mixture = open_text_mixture(recipe, tokenizer, given)
    (batch,) = mixture.held_out
    assert (batch.source, batch.rows) == ("a", 5)
    source = mixture.sources[0]
    assert source.held_out is not None
    trained = {tuple(source.rows[row][0]) for row in range(len(source.rows))}
    held_out = {tuple(source.held_out[row][0]) for row in range(len(source.held_out))}
    assert not trained & held_out
    assert len(trained) + len(held_out) == 200


def test_no_long_document_held_out_is_nothing_to_measure_on(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    # Of the two concepts, the rule holds out the second.
    rows = [{"text": "long " * 30, "about": "a"}] * 8 + [{"text": "short", "about": "d"}]
    columns = {"text": "text", "concept": "about"}
    held = Texts.from_rows(rows, columns=columns, held_out={"share": 0.5})
    assert held.count() == (9, 1)
    recipe = recipe_over({"manifest": "a", "min_tokens": 10})
    mixture = open_text_mixture(recipe, tokenizer, {"a": held})
    assert mixture.sources[0].held_out is None
    assert mixture.held_out == []


def test_a_fingerprint_is_of_what_is_read(tokenizer: PreTrainedTokenizerBase) -> None:
    recipe = recipe_over({"manifest": "a"})

    def fingerprint(given: Texts) -> str:
        return open_text_mixture(recipe, tokenizer, {"a": given}).fingerprints["a"]

    assert fingerprint(texts(40)) == fingerprint(texts(40, name="other", license="any"))
    assert fingerprint(texts(40)) != fingerprint(texts(41))


def test_the_table_says_what_will_be_read(tokenizer: PreTrainedTokenizerBase) -> None:
    given = {"a": texts(90, held_out={"share": 0.1}), "b": texts(30, "other")}
    mixture = open_text_mixture(recipe_over({"manifest": "a"}, {"manifest": "b"}), tokenizer, given)
    a, b = table_of(mixture)
    rows = len(mixture.sources[0].rows)
    assert a[:2] == ["a", str(rows)]
    assert a[4] == str(90 - rows)
    assert b[:2] == ["b", "30"]
    assert b[3:5] == ["30", "0"]
    # 80 rows in all, of whole draws.
    assert float(a[6]) * (rows // 4) + float(b[6]) * (30 // 4) == pytest.approx(20, abs=0.2)


def table_of(mixture: TextMixture) -> list[list[str]]:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(mixture.table())
    lines = [line for line in captured.get().splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_a_source_that_the_recipe_does_not_mention_is_refused(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    with pytest.raises(UserError, match=r"sources: c is not in the recipe's data\.mix.* a, b"):
        open_text_mixture(
            recipe_over({"manifest": "a"}, {"manifest": "b"}), tokenizer, {"c": texts(8)}
        )


def test_two_equal_entries_are_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    recipe = recipe_over({"manifest": "a"}, {"manifest": "b"}, {"manifest": "a"})
    with pytest.raises(UserError, match=r"data\.mix: two entries are called a: take one out"):
        open_text_mixture(recipe, tokenizer, {"a": texts(8), "b": texts(8)})


def test_a_source_of_fewer_rows_than_a_draw_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    recipe = recipe_over({"manifest": "a"})
    with pytest.raises(DataError, match=r"a: 3 rows of at most 16 tokens, .*data\.draw_rows = 4"):
        open_text_mixture(recipe, tokenizer, {"a": texts(3)})


def test_a_manifest_of_pairs_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(UserError, match="hpo_synonym: describes pairs"):
        open_text_mixture(recipe_over({"manifest": "hpo_synonym"}), tokenizer)


def test_more_ranks_than_rows_in_a_step_are_refused() -> None:
    run_on_ranks(2, check_few_rows, texts(8))


def check_few_rows(given: Texts) -> None:
    recipe = recipe_over({"manifest": "a"}, batch_tokens=16, draw_rows=1)
    with pytest.raises(UserError, match=r"a step has .* = 1 rows, fewer than the 2 ranks"):
        open_text_mixture(recipe, real_tokenizer(), {"a": given})
