from pathlib import Path
from typing import Any

import pytest
from support.tiny_bert import real_tokenizer

import embedkit
from embedkit.data.pairs.records import Records
from embedkit.errors import UserError
from embedkit.finetuning.overview import remarks
from embedkit.recipe import Recipe


@pytest.mark.parametrize(("warmup", "told"), [(5, False), (6, True), (20, True)])
def test_a_rate_that_rises_for_most_of_the_run_is_remarked(warmup: int, told: bool) -> None:
    tables: dict[str, Any] = {
        "steps": 10,
        "model": "starter",
        "data": {"batch_size": 4, "mix": [{"manifest": "a"}]},
        "optim": {"lr": 1e-3, "warmup_steps": warmup},
    }
    printed = list(remarks(Recipe.model_validate(tables)))
    assert len(printed) == told
    assert all(f"optim.warmup_steps = {warmup} is more than half of the 10" in r for r in printed)


@pytest.mark.parametrize(("every", "told"), [(9, False), (10, True)])
def test_a_validation_of_the_last_step_alone_is_remarked(every: int, told: bool) -> None:
    tables: dict[str, Any] = {
        "steps": 10,
        "model": "starter",
        "data": {"batch_size": 4, "mix": [{"manifest": "a"}]},
        "optim": {"lr": 1e-3},
        "validation": {"share": 0.1, "every": every},
    }
    printed = list(remarks(Recipe.model_validate(tables)))
    assert len(printed) == told
    assert all(f"validation.every = {every} is not less than the 10 steps" in r for r in printed)


INSTRUCTION = "Given the name of a symptom as a patient would put it, retrieve the clinical term: "


def run_of(small_recipe: Path, output: Path, source: Records, *settings: str) -> Path:
    """Train one step on ``source`` alone."""
    recipe = embedkit.load_recipe(
        str(small_recipe),
        ['data.mix=[{manifest = "given"}]', "steps=1", "optim.warmup_steps=0", *settings],
    )
    return embedkit.finetune(recipe, output, sources={"given": source})


@pytest.mark.parametrize("side", ["query", "document"])
def test_a_prompt_that_leaves_no_room_for_a_text_is_refused_before_training(
    side: str, small_recipe: Path, tmp_path: Path
) -> None:
    taken = len(real_tokenizer()(INSTRUCTION)["input_ids"])
    rows = [{"query": f"query {n}", "positive": f"positive {n}"} for n in range(8)]
    source = Records.from_rows(rows, prompts={side: INSTRUCTION})
    limit = f"data.max_{side}_tokens="
    with pytest.raises(UserError) as told:
        run_of(small_recipe, tmp_path / "run", source, f"{limit}{taken + 7}")
    assert str(told.value) == (
        f"given: max_{side}_tokens = {taken + 7}: the prompt {INSTRUCTION!r} and special tokens "
        f"take {taken} of them, which leaves 7 to a text; set {taken + 8} or more, or shorten the "
        "prompt"
    )
    assert not (tmp_path / "run").exists()
    run_of(small_recipe, tmp_path / "run", source, f"{limit}{taken + 8}")


def test_the_limit_of_a_source_is_the_one_that_counts(small_recipe: Path, tmp_path: Path) -> None:
    rows = [{"query": f"query {n}", "positive": f"positive {n}"} for n in range(8)]
    source = Records.from_rows(rows, prompts={"query": INSTRUCTION}, max_query_tokens=20)
    with pytest.raises(UserError, match=r"given: max_query_tokens = 20: .* leaves 0 to a text"):
        run_of(small_recipe, tmp_path / "run", source, "data.max_query_tokens=64")


def test_the_share_of_truncated_texts_stands_in_the_overview(
    small_recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Of three texts a row, one in eight queries is longer than 8 tokens: one text in 24.
    rows = [
        {"query": "amber " * (20 if n == 3 else 2) + str(n), "positive": "p", "negative": "n"}
        for n in range(8)
    ]
    run_of(small_recipe, tmp_path / "run", Records.from_rows(rows), "data.max_query_tokens=8")
    table = capsys.readouterr().out
    assert "cut" in table
    # All of a source this small are counted.
    assert "has not measured" not in table
    (line,) = (line for line in table.splitlines() if "given" in line and "%" in line)
    assert line.split("│")[-2].strip() == "4.2%"


def test_encode_refuses_a_prompt_that_leaves_no_room(tiny_model: Path) -> None:
    model = embedkit.load(tiny_model, dtype="fp32")
    with pytest.raises(UserError, match=r"max_tokens = 24: the prompt 'Given .* leaves 2 to a te"):
        model.encode("cardiac arrest", prompt=INSTRUCTION, max_tokens=24)
    model.max_tokens = 24
    with pytest.raises(UserError, match="max_tokens = 24: the prompt"):
        model.encode("cardiac arrest", prompt=INSTRUCTION)
    assert model.encode("cardiac arrest", prompt="x: ").shape == (32,)
    # Without a prompt any limit will do.
    assert model.encode("cardiac arrest", max_tokens=3).shape == (32,)
