"""Runs on scored pairs: CoSENT orders similarities by the scores; other uses are refused."""

from pathlib import Path
from typing import Any

import pytest
from support.small_runs import metrics_of

import embedkit
from embedkit.data.pairs.records import Records
from embedkit.errors import DataError
from embedkit.recipe import Recipe

WORDS = ["stone", "river", "music", "law"]
ROWS = [{"query": f"term {row}", "positive": WORDS[row % 4], "match": row % 4} for row in range(16)]


def recipe_of(model: Path, objective: dict[str, Any], steps: int = 2) -> Recipe:
    return Recipe.model_validate(
        {
            "model": str(model),
            "steps": steps,
            "precision": "fp32",
            "data": {
                "batch_size": 16,
                "mix": [{"manifest": "terms"}],
                "max_query_tokens": 32,
                "max_document_tokens": 32,
                "workers": 0,
            },
            "objective": objective,
            "optim": {"lr": 5e-3, "schedule": "constant"},
        }
    )


@pytest.mark.parametrize("kind", ["cosent", "angle"])
def test_training_on_scores_orders_the_similarities(
    kind: str, tiny_model: Path, tmp_path: Path
) -> None:
    records = Records.from_rows(ROWS, columns={"score": "match"})
    recipe = recipe_of(tiny_model, {"kind": kind, "micro_batch_tokens": 64}, steps=24)
    embedkit.finetune(recipe, tmp_path / "run", sources={"terms": records})
    lines = metrics_of(tmp_path / "run")
    assert lines[-1]["loss"] < lines[0]["loss"] - 1
    assert lines[0]["spearman"] < 0
    assert lines[-1]["spearman"] > 0.6


@pytest.mark.parametrize("loss", ["kl", "margin_mse"])
def test_training_on_a_teacher_learns_its_order(
    loss: str, tiny_model: Path, tmp_path: Path
) -> None:
    rows = [
        {"query": f"term {row}", "positive": "stone", "negatives": ["river", "law"]}
        | {"pos_scores": 0.2, "neg_scores": [0.9, -0.4]}
        for row in range(16)
    ]
    records = Records.from_rows(rows, columns={"scores": ["pos_scores", "neg_scores"]})
    objective = {"kind": "distill", "loss": loss, "temperature": 0.2, "teacher_temperature": 0.2}
    recipe = recipe_of(tiny_model, objective, steps=16)
    embedkit.finetune(recipe, tmp_path / "run", sources={"terms": records})
    lines = metrics_of(tmp_path / "run")
    assert lines[-1]["loss"] < lines[0]["loss"] / 2
    assert lines[-1]["accuracy"] > 0.9
    with pytest.raises(DataError, match=r'"contrastive" does not use them: train with objective'):
        embedkit.finetune(recipe_of(tiny_model, {}), tmp_path / "no", sources={"terms": records})
    untaught = Records.from_rows(rows, ignore=["pos_scores", "neg_scores"])
    with pytest.raises(
        DataError, match=r'objective\.kind = "distill" needs hard negatives and a t'
    ):
        embedkit.finetune(recipe, tmp_path / "no", sources={"terms": untaught})


def test_a_contrastive_loss_on_scores_names_three_remedies(
    tiny_model: Path, tmp_path: Path
) -> None:
    records = Records.from_rows(ROWS, columns={"score": "match"})
    with pytest.raises(DataError) as told:
        embedkit.finetune(recipe_of(tiny_model, {}), tmp_path / "run", sources={"terms": records})
    message = str(told.value)
    assert "\n" not in message
    for remedy in ('objective.kind = "cosent"', '"match > 4"', "list 'match' in ignore"):
        assert remedy in message


def test_hard_negatives_that_the_loss_does_not_use_are_refused(
    tiny_model: Path, tmp_path: Path
) -> None:
    rows = [{**row, "negative": "other"} for row in ROWS]
    recipe = recipe_of(tiny_model, {"kind": "cosent"})
    options: dict[str, Any] = {"columns": {"score": "match"}}
    records = Records.from_rows(rows, **options)
    message = r'terms: has hard negatives, which objective\.kind = "cosent" does not use: set igno'
    with pytest.raises(DataError, match=message):
        embedkit.finetune(recipe, tmp_path / "run", sources={"terms": records})
    records = Records.from_rows(rows, **options, negatives_per_query=0)
    embedkit.finetune(recipe, tmp_path / "run", sources={"terms": records})
