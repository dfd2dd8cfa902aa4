"""Losses, readers and poolings of other distributions: those of ``docs/extending.md``, trained."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.losses import TripletLoss
from sentence_transformers.sentence_transformer.losses.triplet import TripletDistanceMetric
from sentence_transformers.sentence_transformer.modules import Pooling
from support.distributions import block, command, install, run_beside
from support.ranks import run_on_ranks
from support.small_runs import metrics_of, state_of, write_small_recipe
from support.tiny_bert import gradients, write_tiny_model
from torch import Tensor

import embedkit
from embedkit import distributed
from embedkit.data.pairs.contrastive_batches import Batches
from embedkit.data.pairs.records import open_records
from embedkit.finetuning.mixture import build_batch_sampler, open_mixture
from embedkit.finetuning.show_batch import texts_of_step
from embedkit.models import hub
from embedkit.recipe import Recipe, load_recipe

HINGE = tomllib.loads(block("recipe.toml", "hinge"))


def write_recipe(folder: Path, model: Path, **changes: Any) -> Path:
    """Write a recipe over pairs with hard negatives, in which a longer run begins like this one."""
    path = write_small_recipe(folder, model)
    tables = tomllib.loads(path.read_text())
    tables["data"]["mix"] = [{"manifest": str(folder / "triplets.toml")}]
    tables["optim"] |= {"schedule": "constant"}
    path.write_text(tomli_w.dumps({**tables, "checkpoints": {"every": 2}, **changes}))
    return path


def finetune(site: Path, recipe: Path, run: Path, *words: str) -> tuple[int | None, str]:
    options = ("--recipe", str(recipe), "--output", str(run))
    return run_beside(site, command, "finetune", *options, *words)


def trained(site: Path, recipe: Path, run: Path, *words: str) -> list[dict[str, Any]]:
    """The metrics of a run that is expected to succeed."""
    code, said = finetune(site, recipe, run, *words)
    assert code == 0, said
    return metrics_of(run)


def refusal(site: Path, recipe: Path, run: Path, *words: str) -> str:
    """The line that answers a mistake, which leaves the folder of the run as it was."""
    before = contents(run)
    code, said = finetune(site, recipe, run, *words)
    assert code == 2, said
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in said
    assert contents(run) == before
    return line


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.slow
def test_a_loss_trains_with_the_numbers_of_another_implementation(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model", dropout=0.0)
    recipe = write_recipe(tmp_path, model, objective=HINGE["objective"], steps=2)
    # A triplet has one negative.
    manifest = tmp_path / "triplets.toml"
    manifest.write_text(f"negatives_per_query = 1\n{manifest.read_text()}")
    site = install(tmp_path / "site", "hinge_loss")
    lines = trained(site, recipe, tmp_path / "run")
    loss, norm = by_triplet_loss(model, recipe)
    assert lines[0]["loss"] == pytest.approx(loss, rel=1e-5)
    assert lines[0]["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert loss > 0.1


def by_triplet_loss(model: Path, recipe: Path) -> tuple[float, float]:
    """The loss of the first step and the norm of its gradient, by sentence-transformers alone."""
    sides: dict[str, list[str]] = {"query": [], "positive": [], "negative": []}
    for line in list(texts_of_step(load_recipe(str(recipe), ["objective="]), 0))[1:]:
        _, role, text = line.split("\t")
        sides[role].append(text)
    assert len(sides["query"]) == len(sides["positive"]) == len(sides["negative"]) == 8
    theirs = SentenceTransformer(
        modules=[Transformer(str(model), max_seq_length=32), Pooling(32)], device="cpu"
    )
    vectors = [theirs(theirs.preprocess(texts))["sentence_embedding"] for texts in sides.values()]
    margin = HINGE["objective"]["margin"]
    triplets = TripletLoss(theirs, TripletDistanceMetric.COSINE, triplet_margin=margin)
    loss = triplets.compute_loss_from_embeddings(vectors, torch.empty(0))
    loss.backward()
    norms = [each.grad.norm() for each in theirs.parameters() if each.grad is not None]
    return loss.item(), torch.stack(norms).norm().item()


@pytest.mark.slow
def test_a_run_with_a_loss_resumes_bit_for_bit_and_under_its_own_version_alone(
    tiny_model: Path, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path, tiny_model, objective=HINGE["objective"], steps=4)
    site = install(tmp_path / "site", "hinge_loss")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    expected = trained(site, recipe, whole)
    trained(site, recipe, broken, "--set", "steps=2")
    assert trained(site, recipe, broken, "--resume") == expected
    assert state_of(broken) == state_of(whole)
    assert 'kind = "hinge"' in (whole / "model" / "README.md").read_text()
    assert tomllib.loads((whole / "recipe.toml").read_text())["objective"] == HINGE["objective"]
    facts = json.loads((whole / "run.json").read_text())
    assert facts["extensions"] == {"objective": "hinge_loss 1.0 hinge_loss:Hinge"}

    install(site, "hinge_loss", version="1.1")
    longer = ("--set", "steps=6", "--resume")
    assert (
        'extensions.objective: "hinge_loss 1.0 hinge_loss:Hinge" -> "hinge_loss 1.1 '
        'hinge_loss:Hinge"; undo the change'
    ) in refusal(site, recipe, broken, *longer)
    wrong = refusal(site, recipe, tmp_path / "new", "--set", "objective.margn=1.0")
    assert "objective.margn: there is no such key, did you mean objective.margin?" in wrong
    wrong = refusal(site, recipe, tmp_path / "new", "--set", "objective.margin=-1.0")
    assert "objective.margin: Input should be greater than 0 (got -1.0)" in wrong
    wrong = refusal(site, recipe, tmp_path / "new", "--set", "objective.kind=hing")
    assert "objective: kind = 'hing': the kinds known are contrastive, contextual, " in wrong
    assert ", hinge; others come with the distributions that register them" in wrong


def test_a_loss_is_the_same_on_two_ranks(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model", dropout=0.0)
    recipe = load_recipe(str(write_recipe(tmp_path, model)))
    names: dict[str, Any] = {}
    exec(block("hinge_loss.py"), names)
    objective = names["Hinge"](margin=0.5).build()
    expected = first_step(objective, recipe)
    run_on_ranks(2, check_ranks, objective, recipe, expected)


def check_ranks(objective: Any, recipe: Recipe, expected: Any) -> None:
    metrics, averaged = first_step(objective, recipe)
    torch.testing.assert_close(metrics, expected[0])
    torch.testing.assert_close(averaged, expected[1])


def first_step(objective: Any, recipe: Recipe) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The metrics of the first batch, and its gradient once it is averaged over ranks."""
    model = hub.load(recipe.model).double()
    mixture = open_mixture(recipe)
    sampler = build_batch_sampler(mixture, recipe)
    batches = Batches(sampler, mixture.records, model.tokenizer, recipe.data, seed=0)
    metrics = objective.backward(model, batches[0], key=0, scale=0.5)
    distributed.average_gradients(model.parameters())
    return metrics, gradients(model)


@pytest.mark.slow
def test_the_command_itself_trains_with_a_loss(tiny_model: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, tiny_model, objective=HINGE["objective"], steps=2)
    site = install(tmp_path / "site", "hinge_loss")
    words = ["finetune", "--recipe", str(recipe), "--output", str(tmp_path / "run")]
    done = subprocess.run(
        [str(Path(sys.executable).with_name("embedkit")), *words],
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert metrics_of(tmp_path / "run") == trained(site, recipe, tmp_path / "other")


@pytest.mark.slow
def test_a_reader_brings_rows_which_are_made_anew_by_another_version(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EMBEDKIT_CACHE", str(tmp_path / "cache"))
    cards = [f"term {number}\nwhat term {number} means" for number in range(16)]
    Path("terms.cards").write_text("\n===\n".join(cards))
    Path("terms.toml").write_text(block("manifest.toml"))
    recipe = write_recipe(tmp_path, tiny_model, steps=2)
    mixed = ("--set", 'data.mix=[{manifest="terms.toml"}]')
    site = install(tmp_path / "site", "card_reader")
    trained(site, recipe, tmp_path / "run", *mixed)
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["extensions"] == {"reader of terms": "card_reader 1.0 card_reader:Cards"}
    (made,) = (tmp_path / "cache" / "records").glob("[!.]*")
    _, said = run_beside(site, show_rows)
    assert said.splitlines() == ["16", "term 3 -> what term 3 means"]

    install(site, "card_reader", version="2.0")
    line = refusal(site, recipe, tmp_path / "run", *mixed, "--set", "steps=4", "--resume")
    assert 'extensions.reader of terms: "card_reader 1.0 ' in line
    assert len(list(made.parent.glob("[!.]*"))) == 2
    Path("terms.cards").write_text("a term without its meaning")
    line = refusal(site, recipe, tmp_path / "new", *mixed)
    assert "terms: terms.cards, card 1: has no second line: add its answer" in line
    manifest = Path("terms.toml")
    manifest.write_text(manifest.read_text().replace("divider", "dividers"))
    line = refusal(site, recipe, tmp_path / "new", *mixed)
    assert "reader.dividers: there is no such key, did you mean source.reader.divider?" in line


def show_rows() -> None:
    records = open_records("terms.toml")
    print(len(records), f"{records[3].query} -> {records[3].positive}", sep="\n")  # noqa: T201


TEXTS = ["one", "a text of several words", "query: another one"]


@pytest.mark.slow
def test_a_pooling_trains_and_leaves_a_folder_that_opens_without_it(
    tiny_model: Path, tmp_path: Path
) -> None:
    pooling = tomllib.loads(block("recipe.toml", "pooling"))
    recipe = write_recipe(tmp_path, tiny_model, **pooling, steps=2)
    site = install(tmp_path / "site", "last_pooling")
    trained(site, recipe, tmp_path / "run")
    model = tmp_path / "run" / "model"
    assert run_beside(site, encode, model, tmp_path / "last.npy")[0] == 0
    expected = SentenceTransformer(str(model)).encode(TEXTS)
    np.testing.assert_allclose(np.load(tmp_path / "last.npy"), expected, atol=1e-6)
    again = embedkit.load(model, dtype="fp32")
    assert again.pooling == "lasttoken"
    np.testing.assert_allclose(again.encode(TEXTS), expected, atol=1e-6)

    install(site, "last_pooling", version="1.1")
    line = refusal(site, recipe, tmp_path / "run", "--set", "steps=4", "--resume")
    assert 'model.identity: "' in line
    assert 'extensions.pooling: "last_pooling 1.0 last_pooling:last" -> "last_pooling 1.1' in line
    without_mode = block("last_pooling.py").replace("last.stock_mode", "mode")
    install(site, "last_pooling", code=without_mode)
    line = refusal(site, recipe, tmp_path / "new")
    assert "pooling 'last': stock_mode = None is no pooling of sentence-transformers, so" in line
    wrong_mode = block("last_pooling.py").replace("lasttoken", "last")
    install(site, "last_pooling", code=wrong_mode)
    line = refusal(site, recipe, tmp_path / "new")
    assert "pooling 'last': stock_mode = 'last' is no pooling of sentence-transformers, so" in line
    line = refusal(tmp_path / "elsewhere", recipe, tmp_path / "new")
    assert "embedder.pooling: 'last' is none of the poolings known, which are mean, cls" in line


def encode(model: Path, vectors: Path) -> None:
    np.save(vectors, embedkit.load(model, dtype="fp32").encode(TEXTS))
