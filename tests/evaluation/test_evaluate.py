"""A run scores its model by the path of ``eval-mteb``, up to the table of MTEB(eng, v1)."""

import shlex
import shutil
import signal
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from embedkit_cli.app import app
from support.mirrors import ONE_OF_EACH_TYPE, write_cqadupstack
from support.task_folders import write_task
from support.tiny_bert import real_tokenizer, tiny_bert
from typer.testing import CliRunner, Result

from embedkit import api, load_recipe
from embedkit.evaluation.summary import TYPES, Summary
from embedkit.models import hub

SCORED = {*ONE_OF_EACH_TYPE, "CQADupstackRetrieval"} - {"CQADupstackGamingRetrieval"}


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "120"})


@pytest.mark.slow
def test_a_run_ends_with_the_table_of_the_benchmark_and_so_does_its_export(
    mirror: Path, small_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, run = shutil.copytree(mirror, tmp_path / "hub"), tmp_path / "run"
    parts = write_cqadupstack(hub)
    monkeypatch.setenv("EMBEDKIT_HUB", str(hub))
    recipe = tmp_path / "recipe.toml"
    evaluation = ["", "[evaluation]", 'benchmark = "MTEB(eng, v1)"', "before = false"]
    evaluation += ['dtype = "fp16"', 'instructions = "paper"', ""]
    recipe.write_text(small_recipe.read_text() + "\n".join(evaluation))
    short = ["--set", "steps=2", "--set", "optim.warmup_steps=0"]

    ended = invoke("finetune", "--recipe", recipe, "--output", run, *short)
    assert ended.exit_code == 0, (ended.output, ended.exception)
    told = "evaluation: the data of 47 of 56 tasks cannot be read now (AmazonPolarity"
    before_training, _, after_training = ended.stdout.partition(f"model: {run / 'model'}")
    assert told in before_training
    after = Summary.read(run / "eval/after/summary.json")
    assert not (run / "eval/before").exists()
    assert after.scores.keys() == SCORED
    assert tuple(after.type_means) == TYPES
    assert after.scores["CQADupstackRetrieval"].parts.keys() == set(parts)
    assert after.dtype == "float16"
    assert after.scores["STS12"].prompts == {"text": "Retrieve semantically similar text: "}
    assert f"{100 * (after.mean_over_types or 0):.2f}" in after_training
    assert "(9 of 56 tasks, scores times 100)" in after_training
    assert "\nmissing: BIOSSES: ConnectionError: " in after_training

    # The command that the run prints scores the exported model by itself, and with equal results.
    command = after_training.partition("to score them: embedkit ")[2]
    again = tmp_path / "again"
    scored = invoke(*shlex.split(command), "--output", again, "--no-cache")
    assert scored.exit_code == 1, scored.exception  # 47 tasks are still missing.
    summary = Summary.read(again / "summary.json")
    assert (summary.identity, summary.missing) == (after.identity, after.missing)
    for name, score in summary.scores.items():
        assert (score.score, score.prompts) == (
            after.scores[name].score,
            after.scores[name].prompts,
        )


@pytest.mark.usefixtures("native_bf16")
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([], id="plain"),
        pytest.param(["evaluation.dtype=fp16"], id="fp16"),
        pytest.param(["precision=bf16", "evaluation.dtype=fp32"], id="fp32 after bf16"),
        pytest.param(["lora.rank=2"], id="adapters"),
        pytest.param(
            ["objective.kind=contextual", "objective.false_negatives=off", "context.num_context=4"],
            id="contextual",
        ),
    ],
)
def test_an_exported_model_has_the_scores_of_its_run_to_the_last_digit(
    changes: list[str], small_recipe: Path, tmp_path: Path
) -> None:
    run, tasks = tmp_path / "run", tmp_path / "tasks"
    for type_ in ("retrieval", "sts"):
        write_task(tasks / type_, type_)
    wanted = [f"evaluation.task_dirs=['{tasks}']", "evaluation.before=false"]
    settings = ["steps=2", "optim.warmup_steps=0", *wanted, *changes]
    api.finetune(load_recipe(str(small_recipe), settings), run)
    after = Summary.read(run / "eval/after/summary.json")
    again = api.evaluate(
        run / "model", output=tmp_path / "again", recipe=run / "recipe.toml", cache=False
    )
    assert after.scores.keys() == {"retrieval", "sts"}
    assert (again.identity, again.dtype) == (after.identity, after.dtype)
    for name, score in again.scores.items():
        assert (score.score, score.prompts, score.contexts) == (
            after.scores[name].score,
            after.scores[name].prompts,
            after.scores[name].contexts,
        )


def test_an_encoder_with_a_flash_kernel_is_scored_in_fp32(tmp_path: Path) -> None:
    tiny_bert(dropout=0.0).save_pretrained(tmp_path / "bert")
    real_tokenizer().save_pretrained(tmp_path / "bert")
    model = hub.load(str(tmp_path / "bert"), autocast=torch.bfloat16, device=torch.device("cpu"))
    encoder: Any = model.backbone.model

    def choose(kernel: str) -> None:
        encoder.config._attn_implementation = kernel

    # transformers chooses no flash kernel where flash-attn is missing, and computes by none.
    encoder.set_attn_implementation = choose
    choose("flash_attention_2")
    write_task(tmp_path / "sts", "sts")
    summary = api.evaluate(model, [tmp_path / "sts"], tmp_path / "out", dtype="fp32", cache=False)
    assert not summary.failed
    assert encoder.config._attn_implementation == "flash_attention_2"


def test_an_interruption_that_a_library_swallows_ends_the_task_at_its_next_batch(
    tiny_model: Path, tmp_path: Path, one_text_a_batch: None
) -> None:
    model, batches = hub.load(str(tiny_model)), count(1)

    def swallow(*_: object) -> None:
        with suppress(KeyboardInterrupt):
            if next(batches) == 2:
                signal.raise_signal(signal.SIGTERM)

    model.backbone.register_forward_pre_hook(swallow)
    folder = write_task(tmp_path / "mine", "sts")
    with pytest.raises(api.EvaluationInterrupted) as stopped:
        api.evaluate(model, [folder], tmp_path / "out", cache=False)
    assert next(batches) == 3
    assert stopped.value.args == (signal.SIGTERM,)
    assert stopped.value.summary.missing == ["mine"]
    assert len(model.encode(["the model encodes as before", "and again"])) == 2
