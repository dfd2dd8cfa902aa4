"""Runs of two-stage models: what they leave behind, how they resume, and what they start from."""

import json
import shutil
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from support.interrupted import CrashError, at_step, start, wait_for_lines
from support.ranks import run_on_ranks
from support.small_runs import STEPS, metrics_of, state_of
from support.task_folders import write_task
from torch import Tensor

from embedkit import api, distributed
from embedkit.errors import UserError
from embedkit.evaluation.encoding.in_context import ContextualEncoder
from embedkit.evaluation.mteb.scoring import evaluate
from embedkit.evaluation.mteb.task_selection import tasks_of
from embedkit.evaluation.summary import Summary
from embedkit.finetuning import model as starting_model
from embedkit.finetuning.show_batch import texts_of_step
from embedkit.models import hub
from embedkit.models.contextual.export import write_contextual
from embedkit.models.contextual.loading import load_contextual
from embedkit.models.contextual.model import Contextual
from embedkit.models.export import write_model
from embedkit.recipe import Recipe, load_recipe
from embedkit.storage.folders import check_replaceable
from embedkit.tokens.batch import TokenBatch
from embedkit.training import checkpoint

# Fewer slots than documents, and noise of every kind.
TWO_STAGES = [
    "objective.kind=contextual",
    "objective.temperature=0.07",
    "objective.micro_batch_tokens=200",
    "context={num_context = 5, context_dropout = 0.1}",
]
CORPUS = ["amber birch", "cedar delta ember", "fjord", "grove heron inlet jetty"]


def contextual(recipe: Path, *overrides: str) -> Recipe:
    return load_recipe(str(recipe), [*TWO_STAGES, *overrides])


def on_table(table: Path) -> list[str]:
    return [
        "data.batches=contextual",
        f"data.batch_table={table}",
        "objective.false_negatives=relative",
    ]


@pytest.fixture(scope="module")
def trained(small_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run. Read it only."""
    run = tmp_path_factory.mktemp("trained") / "run"
    api.finetune(contextual(small_recipe), run)
    return run


@pytest.mark.slow
def test_what_is_exported_is_what_was_trained(trained: Path) -> None:
    found, _ = checkpoint.newest(trained / "checkpoints")
    assert found is not None
    weights = checkpoint.read_weights(found)
    assert {name.partition(".")[0] for name in weights} == {"_own_first", "second", "slots"}
    model = load_contextual(str(trained / "model"))
    torch.testing.assert_close(dict(model.state_dict()), weights)
    context = model.build_context(CORPUS)
    expected = model.encode(CORPUS, context=context).vectors
    theirs = SentenceTransformer(
        str(trained / "model"), trust_remote_code=True, device="cpu", local_files_only=True
    )
    stages: Any = theirs[0]
    vectors = stages.build_context(CORPUS)
    given: Any = {"prompt_name": "document", "dataset_embeddings": vectors}
    np.testing.assert_allclose(theirs.encode(CORPUS, **given), expected, atol=1e-5)


def test_both_encoders_learn(trained: Path, tiny_model: Path) -> None:
    stored, before = (
        load_file(trained / "model" / "model.safetensors"),
        load_file(tiny_model / "model.safetensors"),
    )
    name = "encoder.layer.0.attention.self.query.weight"
    moved = [
        (stored[f"{stage}.{name}"] - before[name]).abs().max() for stage in ("first", "second")
    ]
    assert min(moved) > 1e-3
    assert not torch.equal(stored[f"first.{name}"], stored[f"second.{name}"])


def test_the_card_says_how_to_use_two_stages(trained: Path) -> None:
    card = (trained / "model" / "README.md").read_text()
    assert "build_context(random.sample(corpus, min(5, len(corpus))))" in card
    assert "front of which it reads what the first encoder makes of 5 documents" in card
    assert 'kind = "contextual"' in card
    assert "num_context = 5" in card


@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_resumed_run_equals_the_unbroken_one_bit_for_bit(
    world_size: int, small_recipe: Path, small_tables: Path, tmp_path: Path
) -> None:
    recipe = contextual(small_recipe, *on_table(small_tables / "one"))
    run_on_ranks(world_size, check_resume, recipe, tmp_path)


def check_resume(recipe: Recipe, folder: Path) -> None:
    api.finetune(recipe, folder / "whole")
    broken = folder / "broken"
    with at_step(7, crash), pytest.raises(CrashError):
        api.finetune(recipe, broken)
    api.finetune(recipe, broken, resume=True)
    if distributed.is_main():
        assert state_of(broken) == state_of(folder / "whole")
        assert metrics_of(broken) == metrics_of(folder / "whole")
        assert len(metrics_of(broken)) == STEPS


def crash() -> None:
    raise CrashError


@pytest.mark.slow
def test_a_killed_run_ends_as_the_unbroken_one(small_recipe: Path, tmp_path: Path) -> None:
    recipe = contextual(small_recipe, "checkpoints.every=3")
    api.finetune(recipe, tmp_path / "whole")
    for number, lines in enumerate((2, 5, 8)):
        killed = start(api.finetune, recipe, tmp_path / "killed", resume=number > 0)
        wait_for_lines(tmp_path / "killed", lines)
        killed.kill()
        killed.join()
        assert killed.exitcode == -signal.SIGKILL
    api.finetune(recipe, tmp_path / "killed", resume=True)
    assert state_of(tmp_path / "killed") == state_of(tmp_path / "whole")
    assert metrics_of(tmp_path / "killed") == metrics_of(tmp_path / "whole")


@pytest.mark.parametrize("kind", [[], pytest.param(TWO_STAGES, marks=pytest.mark.slow)])
def test_ranks_with_batches_of_their_own_do_what_one_does_by_accumulating(
    kind: list[str], small_recipe: Path, small_tables: Path, tmp_path: Path
) -> None:
    # Without noise, and with all documents as context: else each rank draws its own.
    quiet = ["context={num_context = 64, context_dropout = 0.0}"] if kind else []
    table = [*on_table(small_tables / "one"), "objective.cross_device=false", "steps=4"]
    model = still(small_recipe, tmp_path)
    overrides = [*kind, *quiet, *table, f"model={model}"]
    run_on_ranks(2, api.finetune, load_recipe(str(small_recipe), overrides), tmp_path / "ranks")
    alone = load_recipe(str(small_recipe), [*overrides, "optim.gradient_accumulation_steps=2"])
    api.finetune(alone, tmp_path / "alone")
    one, two = (metrics_of(tmp_path / name) for name in ("alone", "ranks"))
    for ours, theirs in zip(one, two, strict=True):
        assert ours["source"] == theirs["source"]
        assert ours["tokens"] == theirs["tokens"]
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)


def still(small_recipe: Path, folder: Path) -> Path:
    """The recipe's model without dropout."""
    model = folder / "still"
    shutil.copytree(load_recipe(str(small_recipe)).model, model)
    config = model / "config.json"
    config.write_text(config.read_text().replace('_prob": 0.1', '_prob": 0.0'))
    return model


@pytest.mark.slow
def test_on_other_ranks_a_run_of_own_batches_goes_on_only_if_asked_to(
    small_recipe: Path, small_tables: Path, tmp_path: Path
) -> None:
    recipe = contextual(small_recipe, *on_table(small_tables / "one"))
    with at_step(7, crash), pytest.raises(CrashError):
        api.finetune(recipe, tmp_path / "run")
    run_on_ranks(2, check_other_ranks, recipe, tmp_path / "run")


def check_other_ranks(recipe: Recipe, run: Path) -> None:
    with pytest.raises(UserError, match=r"on 1 ranks, now there are 2; every rank reads batches"):
        api.finetune(recipe, run, resume=True)
    api.finetune(recipe, run, resume=True, allow_world_size_change=True)
    if distributed.is_main():
        assert len(metrics_of(run)) == STEPS


def test_a_batch_table_may_move(small_recipe: Path, small_tables: Path, tmp_path: Path) -> None:
    recipe = contextual(small_recipe, *on_table(small_tables / "one"), "steps=4")
    api.finetune(recipe, tmp_path / "run")
    shutil.copytree(small_tables / "one", tmp_path / "moved")
    moved = contextual(small_recipe, *on_table(tmp_path / "moved"), "steps=4")
    api.finetune(moved, tmp_path / "run", resume=True)
    other = contextual(small_recipe, *on_table(small_tables / "other"), "steps=4")
    with pytest.raises(UserError, match=r"sources\.batch table: .* -> .*; undo the change"):
        api.finetune(other, tmp_path / "run", resume=True)


def test_a_run_may_start_from_two_stages(small_recipe: Path, trained: Path, tmp_path: Path) -> None:
    model = trained / "model"
    recipe = contextual(small_recipe, f"model={model}", "steps=1", "optim.lr=1e-12")
    api.finetune(recipe, tmp_path / "run")
    before, after = (
        load_file(each / "model.safetensors") for each in (model, tmp_path / "run/model")
    )
    assert before.keys() == after.keys()
    torch.testing.assert_close(after, before, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["context.num_context=6"], r"joined otherwise .*context\.num_context: 5 -> 6; set what"),
        (
            ["objective.kind=contrastive", "context="],
            "is a contextual model, .* pass a model of one stage",
        ),
        (["objective.matryoshka_dims=[64]"], "64 is more than the 32 dimensions of"),
        (["data.max_document_tokens=200"], "data.max_document_tokens = 200: .* at most 128"),
    ],
)
def test_what_two_stages_cannot_be_trained_to_is_named(
    overrides: list[str], message: str, small_recipe: Path, trained: Path, tmp_path: Path
) -> None:
    recipe = contextual(small_recipe, f"model={trained / 'model'}", *overrides)
    with pytest.raises(UserError, match=message) as told:
        api.finetune(recipe, tmp_path / "run")
    assert "\n" not in str(told.value)


def test_a_frozen_context_leaves_nothing_to_train(
    small_recipe: Path, trained: Path, tmp_path: Path
) -> None:
    model = load_contextual(str(trained / "model"))
    write_contextual(model, tmp_path / "frozen", context=model.build_context(CORPUS))
    recipe = contextual(small_recipe, f"model={tmp_path / 'frozen'}")
    with pytest.raises(UserError, match="has a frozen context and no first encoder to train"):
        api.finetune(recipe, tmp_path / "run")


@pytest.mark.parametrize("default", ["query", "NQ"])
def test_prompts_that_training_did_without_are_not_exported(
    default: str,
    small_recipe: Path,
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    backbone = hub.load(str(tiny_model))
    backbone.prompts = {"query": "OLD: ", "document": "OLD: ", "NQ": "of a task: "}
    backbone.default_prompt_name = default
    write_model(backbone, tmp_path / "backbone")
    recipe = load_recipe(str(small_recipe), [f"model={tmp_path / 'backbone'}", "steps=1"])
    for manifest, own in {"pairs": "A: ", "triplets": "B: "}.items():
        # The sources disagree on queries and agree on documents.
        file = tmp_path / f"{manifest}.toml"
        text = (small_recipe.parent / f"{manifest}.toml").read_text()
        file.write_text(text.replace('"query: "', f'"{own}"'))
    mix = [{"manifest": str(tmp_path / f"{name}.toml")} for name in ("pairs", "triplets")]
    data = recipe.data.model_dump(mode="json", exclude_none=True) | {"mix": mix}
    recipe = Recipe.model_validate(recipe.model_dump(exclude_none=True) | {"data": data})
    api.finetune(recipe, tmp_path / "run")
    exported = hub.load(str(tmp_path / "run" / "model"))
    assert exported.prompts == {
        "NQ": "of a task: ",
        "document": "",
        "pairs-query": "A: ",
        "triplets-query": "B: ",
    }
    assert exported.default_prompt_name is None
    said = " ".join(capsys.readouterr().out.split())
    assert f"note: the exported model has no default prompt: {default!r}, that of" in said


def test_widths_of_two_stages_are_trained_too(small_recipe: Path, tmp_path: Path) -> None:
    recipe = contextual(small_recipe, "objective.matryoshka_dims=[32, 8]", "steps=2")
    api.finetune(recipe, tmp_path / "run")
    assert all({"loss_32", "loss_8"} <= line.keys() for line in metrics_of(tmp_path / "run"))
    assert "truncate_dim=8" in (tmp_path / "run" / "model" / "README.md").read_text()


@pytest.mark.parametrize("batches_per_rank", [False, True])
@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_context_that_is_shown_is_the_one_that_is_read(
    world_size: int, batches_per_rank: bool, small_recipe: Path, small_tables: Path, tmp_path: Path
) -> None:
    table = on_table(small_tables / "one") if batches_per_rank else []
    # Uncached, so that every context is read once and in one piece.
    changes = ["objective.micro_batch_tokens=", "steps=3", "optim.gradient_accumulation_steps=2"]
    recipe = contextual(small_recipe, *table, *changes)
    run_on_ranks(world_size, check_contexts, recipe, tmp_path)
    by_rank = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(world_size)]
    read = [
        tokens for contexts in zip(*by_rank, strict=True) for each in contexts for tokens in each
    ]
    lines = [line for step in range(3) for line in texts_of_step(recipe, step, world_size)]
    shown = [line.split("\t")[2] for line in lines if "\tcontext" in line]
    tokenizer = hub.load_tokenizer(recipe.model)
    assert sorted(tokenizer(text)["input_ids"] for text in shown) == sorted(read)


def check_contexts(recipe: Recipe, folder: Path) -> None:
    read: list[list[list[int]]] = []
    embed = Contextual.embed_context

    def record(self: Contextual, tokens: TokenBatch) -> Tensor:
        edges = tokens.offsets.tolist()
        read.append([tokens.ids[start:stop].tolist() for start, stop in pairwise(edges)])
        return embed(self, tokens)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Contextual, "embed_context", record)
        api.finetune(recipe, folder / "run")
    (folder / f"{distributed.rank()}.json").write_text(json.dumps(read))


@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_is_scored_before_between_and_after_in_a_context_of_each_task(
    world_size: int, small_recipe: Path, tmp_path: Path
) -> None:
    write_task(tmp_path / "tasks" / "Finding", "retrieval")
    wanted = [f"evaluation.task_dirs=['{tmp_path / 'tasks'}']", "evaluation.every=2"]
    recipe = contextual(small_recipe, "steps=3", *wanted)
    run_on_ranks(world_size, api.finetune, recipe, tmp_path / "run")
    summaries = [
        Summary.read(tmp_path / "run" / "eval" / name / "summary.json")
        for name in ("before", "step-000002", "after")
    ]
    for each in summaries:
        assert not each.failed
        assert each.scores.keys() == {"Finding"}
    assert len({each.identity for each in summaries}) == 3
    before, _, after = summaries
    assert "Finding" in (tmp_path / "run" / "model" / "README.md").read_text()
    # The card was written anew with its scores, and is still embedkit's.
    check_replaceable(tmp_path / "run" / "model", "a model")
    # What was exported scores the same: it is drawn the same context.
    model = load_contextual(str(tmp_path / "run" / "model"))
    again = evaluate(ContextualEncoder(model), tasks_of(recipe, tmp_path), tmp_path / "again")
    # On ranks, a text is encoded beside others.
    assert again.scores["Finding"].score == pytest.approx(
        after.scores["Finding"].score, abs=0 if world_size == 1 else 1e-6
    )
    assert again.identity == after.identity != before.identity


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["context.num_context=9"], "source pairs: a rank reads 8 documents at a time, fewer than"),
        (["context.num_context=8"], None),
    ],
)
def test_batches_that_cannot_fill_a_context_are_refused_at_the_start(
    overrides: list[str], message: str | None, small_recipe: Path, tmp_path: Path
) -> None:
    settings = ["context.null_vector=false", "context.context_dropout=0.0", "steps=2"]
    recipe = contextual(small_recipe, *settings, *overrides)
    if message is None:
        api.finetune(recipe, tmp_path / "run")
        return
    with pytest.raises(UserError, match=message):
        api.finetune(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_kernel_without_masks_is_refused(small_recipe: Path, trained: Path) -> None:
    wanted = [f"model={trained / 'model'}", "embedder.attention=flash_attention_2"]
    with pytest.raises(UserError, match=r"this kernel takes none; set one of sdpa, eager") as told:
        starting_model.load(
            contextual(small_recipe, *wanted), autocast=None, device=torch.device("cpu")
        )
    assert "\n" not in str(told.value)
