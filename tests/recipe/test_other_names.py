"""Keys are read under the names that they have in sentence-transformers, and said to be."""

import warnings
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from support.small_runs import write_small_pretraining, write_small_recipe

from embedkit import UserError, load_pretrain_recipe, load_recipe
from embedkit.recipe import Recipe, Shortcuts, explain, other_names


@pytest.fixture
def file(tiny_model: Path, tmp_path: Path) -> str:
    return str(write_small_recipe(tmp_path, tiny_model))


def set_by(file: str, *overrides: str) -> tuple[Recipe, str]:
    """Return the recipe with overrides, and the one warning that it gives."""
    with pytest.warns(UserWarning, match=r"small\.toml: ") as warned:
        recipe = load_recipe(file, overrides)
    assert len(warned) == 1
    assert "\n" not in str(warned[0].message)
    return recipe, str(warned[0].message).partition("small.toml: ")[2]


@pytest.mark.parametrize(
    ("word", "meant", "told"),
    [
        ("learning_rate=1e-4", ["optim.lr=1e-4"], "optim.lr = 0.0001"),
        ("optim.learning_rate=1e-4", ["optim.lr=1e-4"], "optim.lr = 0.0001"),
        ("num_train_epochs=2", ["epochs=2", "steps="], "epochs = 2, steps unset"),
        ("max_steps=5", ["steps=5"], "steps = 5, epochs unset"),
        ("per_device_train_batch_size=4", ["data.batch_size=4"], "data.batch_size = 4"),
        (
            "max_seq_length=16",
            ["data.max_query_tokens=16", "data.max_document_tokens=16"],
            "data.max_query_tokens = 16, data.max_document_tokens = 16",
        ),
        ("warmup_ratio=0.3", ["optim.warmup_steps=4"], "optim.warmup_steps = 4"),
        ("bf16=true", ["precision=bf16"], 'precision = "bf16"'),
        ("scale=50", ["objective.temperature=0.02"], "objective.temperature = 0.02"),
        ("save_total_limit=3", ["checkpoints.keep=3"], "checkpoints.keep = 3"),
    ],
)
def test_a_key_of_another_name_is_read_and_told(
    file: str, word: str, meant: list[str], told: str
) -> None:
    recipe, line = set_by(file, word)
    assert recipe == load_recipe(file, meant)
    assert line.endswith(f" is {told}")


def test_the_ratio_of_the_warm_up_is_of_the_steps_that_the_run_has(file: str) -> None:
    assert set_by(file, "warmup_ratio=0.1", "steps=205")[0].optim.warmup_steps == 21
    with pytest.raises(UserError, match=r"warmup_ratio = 0\.1: .* set optim\.warmup_steps"):
        load_recipe(file, ["steps=", "epochs=1", "warmup_ratio=0.1"])


@pytest.mark.parametrize("key", ["objective.kind", "loss"])
def test_a_loss_of_sentence_transformers_has_its_scale_and_cache(file: str, key: str) -> None:
    recipe, line = set_by(file, f"{key}=CachedMultipleNegativesSymmetricRankingLoss")
    meant = ["objective.temperature=0.05", "objective.symmetric=true"]
    assert recipe == load_recipe(file, [*meant, "objective.micro_batch_tokens=16384"])
    assert "objective.micro_batch_tokens = 16384" in line
    assert signature(MultipleNegativesRankingLoss).parameters["scale"].default == 1 / 0.05


def test_settings_of_a_recipe_win_over_those_that_come_with_a_loss(file: str) -> None:
    Path(file).write_text(
        Path(file).read_text()
        + '\n[objective]\nkind = "MultipleNegativesRankingLoss"\ntemperature = 0.01\n'
    )
    recipe, line = set_by(file)
    assert recipe.objective.model_dump()["temperature"] == 0.01
    assert (
        line == 'objective.kind = "MultipleNegativesRankingLoss" is objective.kind = "contrastive"'
    )


def test_a_loss_keeps_its_own_kind_if_that_is_known(file: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_recipe(file, ["objective.kind=contrastive"])


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("gradient_checkpointing=true", r"objective\.micro_batch_tokens = 16384 saves memory"),
        ("output_dir=out", "the option --output"),
        ("loss=MatryoshkaLoss", r"nearest: objective\.matryoshka_dims"),
        ("loss=ContrastiveTensionLoss", "the kinds are .*contextual, contrastive"),
        ("objective.kind=TripletLoss", "which reads triplets too"),
        ("bf16=1", "bf16 = 1: write true"),
        ("fp16=true", 'training has no fp16; precision = "auto" is'),
    ],
)
def test_what_has_no_counterpart_is_refused_with_what_is_nearest(
    file: str, word: str, remedy: str
) -> None:
    with pytest.raises(UserError, match=remedy):
        load_recipe(file, [word])


def test_a_batch_of_each_device_is_not_taken_for_one_of_all_ranks(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UserError, match=r"of all ranks; set data\.batch_size=32"):
        load_recipe(file, ["per_device_train_batch_size=8"])


def test_pretraining_has_names_of_its_own(tiny_model: Path, tmp_path: Path) -> None:
    file = str(write_small_pretraining(tmp_path, str(tiny_model)))
    with pytest.warns(UserWarning, match=r"max_seq_length = 16 is data\.max_tokens = 16"):
        recipe = load_pretrain_recipe(file, ["max_seq_length=16", "gradient_checkpointing=true"])
    assert recipe.data.max_tokens == 16
    assert recipe.model.gradient_checkpointing
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_pretrain_recipe(file, ["model.gradient_checkpointing=true"])
    for word in ("num_train_epochs=1", "per_device_train_batch_size=8"):
        with pytest.raises(UserError, match=r"set that|set data\.batch_tokens"):
            load_pretrain_recipe(file, [word])


def test_a_recipe_with_both_names_is_refused(file: str) -> None:
    path = Path(file)
    path.write_text(path.read_text().replace("[optim]", "[optim]\nlearning_rate = 1e-4"))
    with pytest.raises(UserError, match=r"learning_rate is optim\.lr, and both are set: leave"):
        load_recipe(file)


@pytest.mark.parametrize("argument", [*other_names.SAME, *other_names._DEPENDENT])
def test_the_names_are_those_of_sentence_transformers(argument: str) -> None:
    elsewhere = {"model_name_or_path", "max_seq_length", "warmup_ratio"}
    known: Any = SentenceTransformerTrainingArguments.__dataclass_fields__
    assert argument in known or argument in elsewhere


@pytest.mark.parametrize(("word", "key"), other_names.SAME.items())
def test_explain_answers_with_the_key(word: str, key: str) -> None:
    if word == key.rpartition(".")[2]:
        return
    with pytest.raises(UserError, match=f"^{word}: is {key} here$"):
        explain(word)


def test_shortcuts_are_overrides(file: str) -> None:
    short = Shortcuts(lr=1e-4, epochs=2.0, batch_size=4).overrides()
    recipe = load_recipe(file, short)
    assert (recipe.optim.lr, recipe.epochs, recipe.steps) == (1e-4, 2.0, None)
    assert recipe.data.batch_size == 4
    assert Shortcuts().overrides() == []
