"""A loss that Python code passes to ``finetune``: the one of ``docs/extending.md``."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss
from support.distributions import block
from support.small_runs import metrics_of, state_of
from support.tiny_bert import gradients, write_tiny_model

import embedkit
from embedkit.data.batch_sampler import BatchSampler, Source
from embedkit.data.pairs.contrastive_batches import Batches
from embedkit.data.pairs.records import Records
from embedkit.errors import DataError, UserError
from embedkit.finetuning.model import scale_to_unit_norm
from embedkit.models import hub
from embedkit.recipe import Contrastive, Needs, PairObjective, Recipe

SCRIPT = block("script.py")
ROWS = [
    {"query": f"term {row}", "positive": f"meaning {row}", "match": row / 15} for row in range(16)
]


def regression() -> Any:
    """The object of the page, without running the rest of its script."""
    names: dict[str, Any] = {}
    exec(SCRIPT.partition("\npairs = ")[0], names)
    return names["Regression"]()


def scored() -> dict[str, Records]:
    return {"terms": Records.from_rows(ROWS, columns={"score": "match"})}


def unscored() -> dict[str, Records]:
    return {"terms": Records.from_rows(ROWS, ignore="match")}


def recipe_of(model: Path, **changes: Any) -> Recipe:
    tables = {
        "model": str(model),
        "steps": 4,
        "precision": "fp32",
        "data": {
            "batch_size": 8,
            "mix": [{"manifest": "terms"}],
            "max_query_tokens": 32,
            "max_document_tokens": 32,
            "workers": 0,
        },
        "optim": {"lr": 1e-3, "schedule": "constant"},
        "checkpoints": {"every": 2},
    }
    return Recipe.model_validate(tables | changes)


@pytest.mark.slow
def test_the_script_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(SCRIPT, {})
    assert [line["source"] for line in metrics_of(tmp_path / "runs" / "scored")] == ["terms"] * 2
    assert SentenceTransformer("runs/scored/model").encode(["a"]).shape == (1, 384)


def test_batches_bring_the_scores_that_sentence_transformers_would_be_given(
    tmp_path: Path,
) -> None:
    model = hub.load(str(write_tiny_model(tmp_path / "model", dropout=0.0)))
    scale_to_unit_norm(model)
    records, recipe = scored()["terms"], recipe_of(tmp_path)
    sampler = BatchSampler([Source("terms", 16, 8)], [1.0], steps=4, seed=0)
    batches = Batches(sampler, [records], model.tokenizer, recipe.data, seed=0)
    metrics = regression().backward(model, batches[1], key=0, scale=1.0)
    found = gradients(model)
    model.zero_grad()

    texts = batches.texts(1)
    by_query = {row["query"]: row["match"] for row in ROWS}
    labels = torch.tensor([by_query[query] for query in texts.queries])
    theirs = CosineSimilarityLoss(SentenceTransformer(modules=[torch.nn.Identity()]))
    vectors = [model(batches[1].queries), model(batches[1].documents)]
    loss = theirs.compute_loss_from_embeddings(vectors, labels)
    loss.backward()
    torch.testing.assert_close(metrics["loss"], loss.detach())
    torch.testing.assert_close(found, gradients(model))


def test_a_given_loss_resumes_bit_for_bit_and_only_as_the_same_one(
    tiny_model: Path, tmp_path: Path
) -> None:
    recipe, whole, broken = recipe_of(tiny_model), tmp_path / "whole", tmp_path / "broken"
    half = recipe_of(tiny_model, steps=2)
    embedkit.finetune(recipe, whole, sources=scored(), objective=regression())
    embedkit.finetune(half, broken, sources=scored(), objective=regression())
    embedkit.finetune(recipe, broken, sources=scored(), objective=regression(), resume=True)
    assert metrics_of(broken) == metrics_of(whole)
    assert state_of(broken) == state_of(whole)
    card = (whole / "model" / "README.md").read_text()
    assert 'identity = "regression on scores, 1"' in card
    json.loads((whole / "run.json").read_text())

    other = regression()
    other.identity = "regression on scores, 2"
    longer = recipe_of(tiny_model, steps=6)
    with pytest.raises(UserError, match=r'objective\.identity: "reg.* 1" -> "reg.* 2"; .*undo'):
        embedkit.finetune(longer, broken, sources=scored(), objective=other, resume=True)
    with pytest.raises(UserError, match=r'objective\.kind: "object" -> "contrastive"'):
        embedkit.finetune(longer, broken, sources=unscored(), resume=True)


class Section(PairObjective):
    """A section that no distribution registers."""

    kind: str = "mine"

    def build(self) -> Any:
        return regression()


class Identified(Section):
    identity: str = "mine, 1"

    @property
    def needs(self) -> Needs:
        return Needs(scores=True)


def test_a_section_may_be_given_too(tiny_model: Path, tmp_path: Path) -> None:
    recipe = recipe_of(tiny_model, steps=1)
    embedkit.finetune(recipe, tmp_path / "run", sources=scored(), objective=Identified())
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["extensions"] == {"objective": "mine, 1"}
    with pytest.raises(UserError, match="Section: is not registered in embedkit"):
        embedkit.finetune(recipe, tmp_path / "no", sources=unscored(), objective=Section())
    assert not (tmp_path / "no").exists()


def changed(**attributes: object) -> Any:
    """The object of the page with other attributes; ``None`` takes one away."""
    attributes = {"identity": "x", "backward": lambda *_, **__: {}, **attributes}
    kept = {name: value for name, value in attributes.items() if value is not None}
    return type("Mine", (), kept)()


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (changed(identity=None), "objective: Mine has no string identity: give it one that"),
        (changed(identity=1), "objective: Mine has no string identity: give it one that"),
        (changed(backward=None), "is no object with a method backward"),
        (type(changed()), "is no object with a method backward"),
        (changed(needs=["scores"]), r"objective: Mine\.needs is \['scores'\]: make it a Needs"),
        (
            changed(needs=Needs(context=True)),
            r'objective\.kind = "object" needs a \[context\] table',
        ),
        (
            changed(needs=Needs(surrogate_vectors=True)),
            r'objective\.kind = "object" goes by the vectors of a data\.batch_table',
        ),
        (
            changed(needs=Needs(widths=(64, 8))),
            "objective: a width of 64 is more than the 32 dimensions of .*; begin with 32",
        ),
        (
            changed(needs=Needs(scores=True)),
            'source terms: has no scores, and objective.kind = "object" goes by them: name',
        ),
        (changed(), "Mine.backward returns no loss: every objective returns loss and tokens"),
    ],
)
def test_what_no_run_can_be_made_with_is_named(
    objective: Any, message: str, tiny_model: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message) as told:
        embedkit.finetune(
            recipe_of(tiny_model), tmp_path / "run", sources=unscored(), objective=objective
        )
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("table", [{"temperature": 0.1}, {"kind": "contrastive"}, {}])
def test_two_losses_are_refused(table: dict[str, Any], tiny_model: Path, tmp_path: Path) -> None:
    recipe = recipe_of(tiny_model, objective=table)
    with pytest.raises(UserError, match="objective: the recipe sets one already, of kind 'contr"):
        embedkit.finetune(recipe, tmp_path / "run", sources=scored(), objective=regression())


def test_scores_that_the_loss_does_not_go_by_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    message = r'source terms: columns\.score names scores, and objective\.kind = "contrastive"'
    with pytest.raises(DataError, match=message):
        embedkit.finetune(recipe_of(tiny_model), tmp_path / "run", sources=scored())
    assert not (tmp_path / "run").exists()


def test_reading_a_recipe_builds_the_losses_there_are() -> None:
    usual = Needs(known_answers=True, negatives=True)
    assert type(Contrastive().build()).__name__ == "ContrastiveObjective"
    assert Contrastive().needs == usual
    assert Contrastive(matryoshka_dims=(64, 8)).needs == replace(usual, widths=(64, 8))
    assert Contrastive(false_negatives="relative").needs == replace(usual, surrogate_vectors=True)
    assert Contrastive(known_answers="batch").needs == replace(usual, known_answers=False)
