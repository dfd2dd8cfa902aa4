"""Pretraining from recipe to model: broken off, resumed, on any number of ranks."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.interrupted import CrashError, at_step, wait_for_lines
from support.ranks import run_on_ranks
from support.small_runs import (
    STEPS,
    metrics_of,
    state_of,
    write_small_pretraining,
    write_small_recipe,
)
from support.tiny_bert import MINILM
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from embedkit import api, distributed
from embedkit.data.text.texts import Texts
from embedkit.errors import UserError
from embedkit.models import hub
from embedkit.recipe import load_pretrain_recipe, load_recipe


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_small_pretraining(tmp_path_factory.mktemp("mlm"), MINILM))


@pytest.fixture(scope="module")
def alone(recipe: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's folder on one rank."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    pretrain(recipe, (), folder)
    return folder


def pretrain(
    recipe: str,
    overrides: tuple[str, ...],
    output: Path,
    *,
    resume: bool = False,
    allow_world_size_change: bool = False,
) -> None:
    api.pretrain(
        load_pretrain_recipe(recipe, overrides),
        output,
        resume=resume,
        allow_world_size_change=allow_world_size_change,
    )


def held_out(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "held_out.jsonl").read_text().splitlines()]


def test_a_run_leaves_metrics_and_held_out_losses(alone: Path) -> None:
    lines = metrics_of(alone)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    for line in lines:
        assert 0 < line["masked"] < line["tokens"] <= 192
        assert line["padding"] == pytest.approx(1 - line["tokens"] / 192)
    assert 0 < json.loads((alone / "metrics.jsonl").read_text().splitlines()[0])["mfu"] < 1
    losses = held_out(alone)
    assert [line["step"] for line in losses] == [step for step in (0, 6, 12) for _ in range(3)]
    assert {line["source"] for line in losses} == {"short", "long", "long+30"}
    # 30,522 words are equally likely to a model that knows nothing.
    assert losses[0]["loss"] == pytest.approx(np.log(30522), rel=0.02)
    assert losses[-1]["loss"] < losses[0]["loss"] - 1


def test_the_model_opens_in_transformers_with_the_trained_weights(alone: Path) -> None:
    network = AutoModelForMaskedLM.from_pretrained(alone / "model")
    stored = load_file(alone / "checkpoints" / f"step-{STEPS:06d}" / "model.safetensors")
    own = network.state_dict()
    assert own.keys() == {name.removeprefix("network.") for name in stored}
    for name, tensor in stored.items():
        assert torch.equal(own[name.removeprefix("network.")], tensor)
    tokenizer = AutoTokenizer.from_pretrained(alone / "model")
    encoded = tokenizer("amber birch", return_tensors="pt")
    hidden = AutoModel.from_pretrained(alone / "model")(
        input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"]
    ).last_hidden_state
    assert hidden.shape == (1, 4, 16)


def test_finetune_takes_it_as_backbone(alone: Path, tmp_path: Path) -> None:
    recipe = write_small_recipe(tmp_path, alone / "model")
    limits = ["data.max_query_tokens=24", "data.max_document_tokens=24", "steps=2"]
    api.finetune(load_recipe(str(recipe), limits), tmp_path / "run")
    assert len(metrics_of(tmp_path / "run")) == 2


def check_equal(found: Path, expected: Path) -> None:
    assert len(metrics_of(found)) == STEPS
    for one, other in zip(metrics_of(found), metrics_of(expected), strict=True):
        for key in ("source", "masked", "tokens", "flops"):
            assert one.get(key) == other.get(key)
        for key in ("loss", "accuracy", "lr", "padding"):
            assert one[key] == pytest.approx(other[key], rel=1e-5, abs=1e-5), (one, other)
    for one, other in zip(held_out(found), held_out(expected), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)


@pytest.mark.parametrize("shard", ["shard=false", "shard=true"])
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.slow
def test_ranks_give_the_losses_of_one(
    world_size: int, shard: str, recipe: str, alone: Path, tmp_path: Path
) -> None:
    run_on_ranks(world_size, pretrain, recipe, (shard,), tmp_path / "run")
    check_equal(tmp_path / "run", alone)
    weights = [load_file(run / "model" / "model.safetensors") for run in (alone, tmp_path / "run")]
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_micro_batches_change_no_loss(recipe: str, alone: Path, tmp_path: Path) -> None:
    pretrain(recipe, ("data.micro_batch_tokens=100000", "data.workers=2"), tmp_path / "run")
    check_equal(tmp_path / "run", alone)


def crash(recipe: str, overrides: tuple[str, ...], output: Path) -> None:
    def fail() -> None:
        raise CrashError

    with at_step(7, fail), pytest.raises(CrashError):
        pretrain(recipe, overrides, output)


@pytest.mark.parametrize(
    ("world_size", "shard"),
    [
        (1, "false"),
        pytest.param(2, "false", marks=pytest.mark.slow),
        pytest.param(2, "true", marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_equals_the_unbroken_one_bit_for_bit(
    world_size: int, shard: str, recipe: str, tmp_path: Path
) -> None:
    run_on_ranks(world_size, check_resume, recipe, (f"shard={shard}",), tmp_path)


def check_resume(recipe: str, overrides: tuple[str, ...], folder: Path) -> None:
    whole, broken = folder / "whole", folder / "broken"
    pretrain(recipe, overrides, whole)
    crash(recipe, overrides, broken)
    distributed.barrier()
    pretrain(recipe, (*overrides, "data.workers=2"), broken, resume=True)
    if distributed.is_main():
        assert state_of(broken) == state_of(whole)
        assert metrics_of(broken) == metrics_of(whole)
        assert held_out(broken) == held_out(whole)


@pytest.mark.slow
def test_a_run_of_two_ranks_goes_on_on_four_with_the_same_batches(
    recipe: str, alone: Path, tmp_path: Path
) -> None:
    run_on_ranks(2, crash, recipe, ("shard=true",), tmp_path / "run")
    run_on_ranks(4, go_on, recipe, tmp_path / "run")
    check_equal(tmp_path / "run", alone)


def go_on(recipe: str, output: Path) -> None:
    with pytest.raises(UserError, match="on 2 ranks, now there are 4"):
        pretrain(recipe, ("shard=true",), output, resume=True)
    pretrain(recipe, ("shard=true",), output, resume=True, allow_world_size_change=True)


@pytest.mark.slow
def test_two_ranks_killed_and_resumed_equal_the_unbroken_run(recipe: str, tmp_path: Path) -> None:
    longer = ("--set", "steps=40", "--set", "data.workers=1")
    torchrun(recipe, tmp_path / "whole", *longer).wait(300)
    killed = torchrun(recipe, tmp_path / "killed", *longer)
    wait_for_lines(tmp_path / "killed", 9)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait(60)
    assert len(metrics_of(tmp_path / "killed")) < 40
    assert torchrun(recipe, tmp_path / "killed", *longer, "--resume").wait(300) == 0
    assert state_of(tmp_path / "killed") == state_of(tmp_path / "whole")
    assert metrics_of(tmp_path / "killed") == metrics_of(tmp_path / "whole")


def torchrun(recipe: str, output: Path, *words: str) -> "subprocess.Popen[bytes]":
    launcher = str(Path(sys.executable).with_name("torchrun"))
    command = [launcher, "--nproc-per-node", "2", "-m", "embedkit_cli", "pretrain"]
    command += ["--recipe", recipe, "--output", str(output), *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, start_new_session=True)


@pytest.mark.slow
def test_a_second_stage_starts_from_the_weights_of_the_first(
    recipe: str, alone: Path, tmp_path: Path
) -> None:
    overrides = (f"init_from={alone}", "optim.lr=1e-9", "steps=1", "data.max_tokens=48")
    longer = (*overrides, "data.batch_tokens=384", "model.max_position_embeddings=48")
    pretrain(recipe, longer, tmp_path / "two")
    first, second = (
        load_file(run / "model" / "model.safetensors") for run in (alone, tmp_path / "two")
    )
    torch.testing.assert_close(first, second, rtol=0, atol=1e-6)
    pretrain(recipe, (*longer[1:], f"init_from={alone / 'model'}"), tmp_path / "three")
    assert state_of(tmp_path / "three") == state_of(tmp_path / "two")


@pytest.mark.slow
def test_the_decoder_starts_from_the_embedding_and_the_words_frequencies(
    recipe: str, tmp_path: Path
) -> None:
    still = ("steps=1", "optim.lr=1e-9")
    start = ("start.decoder='embedding'", "start.bias='frequencies'")
    pretrain(recipe, (*still, *start), tmp_path / "run")
    weights = load_file(tmp_path / "run" / "model" / "model.safetensors")
    torch.testing.assert_close(
        weights["decoder.weight"], weights["model.encoder.weight"], rtol=0, atol=1e-6
    )
    expected = np.zeros(30522)
    for name, share in {"short": 0.5, "long": 0.5}.items():
        counts = np.ones(30522)
        for word in trained_words(recipe, name):
            counts[word] += 1
        expected += share * counts / counts.sum()
    np.testing.assert_allclose(weights["decoder.bias"].numpy(), np.log(expected), atol=1e-5)


def trained_words(recipe: str, name: str) -> list[int]:
    """The ids of all documents that the source ``name`` does not hold out."""
    texts = Texts.from_manifest(str(Path(recipe).parent / f"{name}.toml"))
    tokenizer = AutoTokenizer.from_pretrained(hub.resolve(MINILM))
    documents = [each.text for each in texts.documents() if not each.held_out]
    return [i for ids in tokenizer(documents, add_special_tokens=False)["input_ids"] for i in ids]


def test_weights_of_other_sizes_are_refused(recipe: str, alone: Path, tmp_path: Path) -> None:
    overrides = (f"init_from={alone}", "model.num_hidden_layers=3")
    with pytest.raises(UserError, match=r"init_from = .*: 6 of its weights are not this model's"):
        pretrain(recipe, overrides, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("num_attention_heads=1", "was trained with num_attention_heads = 2, and model"),
        ("norm_eps=1e-6", r"was trained with norm_eps = 1e-05, and model\.norm_eps = 1e-06"),
    ],
)
@pytest.mark.parametrize("part", ["", "model"])
def test_settings_that_no_weight_shows_are_compared(
    part: str, setting: str, message: str, recipe: str, alone: Path, tmp_path: Path
) -> None:
    overrides = (f"init_from={alone / part}", f"model.{setting}")
    with pytest.raises(UserError, match=message):
        pretrain(recipe, overrides, tmp_path / "run")


def test_a_damaged_end_of_the_first_stage_is_not_passed_over(
    recipe: str, alone: Path, tmp_path: Path
) -> None:
    shutil.copytree(alone, tmp_path / "one")
    last = max((tmp_path / "one" / "checkpoints").glob("step-*"))
    weights = next(last.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    told = r"is damaged \(.* does not match sha256\.json\): restore it .*, or pass .*/model"
    with pytest.raises(UserError, match=told):
        pretrain(recipe, (f"init_from={tmp_path / 'one'}",), tmp_path / "run")


@pytest.mark.slow
def test_an_unfinished_first_stage_is_told_of(recipe: str, alone: Path, tmp_path: Path) -> None:
    shutil.copytree(alone, tmp_path / "one")
    checkpoints = sorted((tmp_path / "one" / "checkpoints").glob("step-*"))
    shutil.rmtree(checkpoints[-1])
    overrides = (f"init_from={tmp_path / 'one'}", "steps=1")
    with pytest.warns(UserWarning, match=rf"its run has come to step \d+ of {STEPS}, and these"):
        pretrain(recipe, overrides, tmp_path / "run")


def test_texts_of_ones_own_stand_in_for_a_manifest(recipe: str, tmp_path: Path) -> None:
    own = Texts.from_rows([f"{number} amber birch cedar" for number in range(50)])
    tables = load_pretrain_recipe(recipe).model_dump(mode="json", exclude_none=True)
    tables["data"]["mix"] = [{"manifest": "mine"}]
    tables["steps"] = 2
    mine = type(load_pretrain_recipe(recipe)).model_validate(tables)
    api.pretrain(mine, tmp_path / "run", sources={"mine": own})
    assert [line["source"] for line in metrics_of(tmp_path / "run")] == ["mine", "mine"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("model.vocab_size=100",), r"vocab_size = 100: .* has 30522 ids"),
        (("init_from=x", "start.bias='frequencies'"), "start: concerns random weights"),
        (("init_from=nowhere/at/all",), "nowhere/at/all: no such folder"),
        (("data.draw_rows=3",), "8 rows a step, which is not a multiple of draw_rows = 3"),
        (("optim.gradient_accumulation_steps=2",), r"set data\.micro_batch_tokens instead"),
        (("steps=0",), "steps: "),
    ],
)
def test_a_mistake_is_told_before_anything_is_written(
    overrides: tuple[str, ...], message: str, recipe: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        pretrain(recipe, overrides, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_recipes_know_their_command(recipe: str, small_recipe: Path) -> None:
    with pytest.raises(UserError, match="is a recipe for embedkit finetune"):
        load_pretrain_recipe(str(small_recipe))
    with pytest.raises(UserError, match="is a recipe for embedkit pretrain"):
        load_recipe(recipe)
    with pytest.raises(UserError, match="shard: contrastive training runs replicated"):
        load_recipe(str(small_recipe), ["shard=true"])
