"""What is refused and said before a run whose queries lack negatives."""

import json
from pathlib import Path
from typing import Any

import pytest

import embedkit
from embedkit.data.pairs.records import Records
from embedkit.errors import DataError, UserError
from embedkit.finetuning.mixture import open_mixture
from embedkit.finetuning.negatives import check_negatives, remarks_on_negatives
from embedkit.recipe import Recipe
from embedkit.training.idle_steps import LIMIT


def rows_with(**columns: Any) -> list[dict[str, Any]]:
    return [{"query": f"query {n}", "positive": f"answer {n}"} | columns for n in range(8)]


def recipe_of() -> Recipe:
    tables: dict[str, Any] = {
        "steps": 10,
        "model": "starter",
        "data": {"batch_size": 4, "mix": [{"manifest": "given"}]},
        "optim": {"lr": 1e-3},
    }
    return Recipe.model_validate(tables)


def check(source: Records) -> None:
    check_negatives(recipe_of(), open_mixture(recipe_of(), {"given": source}))


def remarks(source: Records) -> list[str]:
    return list(remarks_on_negatives(recipe_of(), open_mixture(recipe_of(), {"given": source})))


ALONE: dict[str, Any] = {"in_batch_negatives": False}


@pytest.mark.parametrize(
    ("columns", "options", "reason"),
    [
        ({}, ALONE, r"in_batch_negatives = false, .* columns.negatives or run embedkit mine"),
        ({"negatives": []}, ALONE, "in_batch_negatives = false"),
        (
            {"negatives": ["no"]},
            ALONE | {"negatives_per_query": 0},
            "in_batch_negatives = false, .* or leave negatives_per_query out",
        ),
        ({}, {"batch_size": 1}, "a query shares its batch with no other row, .* raise batch_size"),
        ({"label": "all"}, {}, "all rows have the label 'all'; .* ignore = .*label"),
        ({"positive": " same "}, {}, "all rows have the positive 'same'"),
        ({"query": "same"}, {}, "all rows have the query 'same'"),
    ],
)
def test_a_source_without_any_negative_is_refused(
    columns: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    source = Records.from_rows(rows_with(**columns), **options)
    with pytest.raises(DataError, match=f"source given: no query can have a negative: {reason}"):
        check(source)


def test_hard_negatives_and_other_rows_are_enough() -> None:
    check(Records.from_rows(rows_with()))
    for columns in ({}, {"label": "all"}, {"positive": "same"}):
        check(Records.from_rows(rows_with(negative="no", **columns), in_batch_negatives=False))
    one_apart = [*rows_with(label="all"), {"query": "q", "positive": "p", "label": "other"}]
    check(Records.from_rows(one_apart))
    check(Records.from_rows([*rows_with(label="all"), {"query": "q", "positive": "p"}]))


def test_a_loss_that_learns_from_scores_takes_such_a_source() -> None:
    class ByScores:
        identity = "by-scores-1"

        def backward(self) -> None: ...

    recipe = recipe_of().with_objective(ByScores())
    check_negatives(
        recipe, open_mixture(recipe, {"given": Records.from_rows(rows_with(), **ALONE)})
    )


def test_the_negatives_that_are_left_out_are_told() -> None:
    six = rows_with(negatives=[f"no {n}" for n in range(6)])
    (told,) = remarks(Records.from_rows(six))
    assert told.startswith("source given: each step draws 4 of up to 6 hard negatives of a query")
    assert "negatives_per_query = 6" in told
    # Who states a number knows it, and all of a few are read.
    assert not remarks(Records.from_rows(six, negatives_per_query=2))
    assert not remarks(Records.from_rows(rows_with(negatives=["a", "b", "c"])))


def test_a_source_reads_at_most_as_many_pairs_as_the_recipe() -> None:
    for own, batch in ((2, 2), (4, 4), (8, 4), (None, 4)):
        source = Records.from_rows(rows_with(), batch_size=own)
        (opened,) = open_mixture(recipe_of(), {"given": source}).sources
        assert opened.batch_size == batch
        assert len(remarks(source)) == (own == 8)
    (told,) = remarks(Records.from_rows(rows_with(), batch_size=8))
    assert "its batch_size = 8 is above the recipe's, and its batches have 4 pairs" in told


def run_of(small_recipe: Path, output: Path, source: Records, *settings: str) -> Path:
    mix = 'data.mix=[{manifest = "given"}]'
    recipe = embedkit.load_recipe(str(small_recipe), [mix, *settings])
    return embedkit.finetune(recipe, output, sources={"given": source})


def test_the_overview_counts_negatives(
    small_recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Records.from_rows(rows_with(negatives=list("abcde")), negatives_per_query=2)
    run_of(small_recipe, tmp_path / "run", source, "steps=1", "optim.warmup_steps=0")
    assert "2 of 5" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_without_live_negatives_stops_and_keeps_its_checkpoint(
    small_recipe: Path, tmp_path: Path
) -> None:
    # Only its labels, of which one row in a thousand has another, leave this source no negatives.
    rows = [{"query": f"q {n}", "positive": f"p {n}", "label": "all"} for n in range(1000)]
    rows[-1]["label"] = "other"
    settings = (f"steps={2 * LIMIT}", "checkpoints.every=1000", "logging.every=3")
    with pytest.raises(UserError) as told:
        run_of(small_recipe, tmp_path / "run", Records.from_rows(rows), *settings)
    assert "learns nothing from source given" in str(told.value)
    assert "since no query had a negative" in str(told.value)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").open()]
    # Metrics are looked at in blocks of three steps.
    (checkpoint,) = (tmp_path / "run/checkpoints").glob("step-*")
    assert int(checkpoint.name.removeprefix("step-")) == len(lines) == 3 * -(-LIMIT // 3)
    assert not (tmp_path / "run/model").exists()
    last = lines[-1]
    assert (last["loss"], last["negatives"], last["accuracy"]) == (0.0, 0.0, 0.0)
    assert (last["no_negatives"], last["masked_label"], last["masked_text"]) == (1.0, 7.0, 0.0)
