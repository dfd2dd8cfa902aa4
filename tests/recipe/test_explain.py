import tomllib

import pytest

from embedkit.config import shipped
from embedkit.errors import UserError
from embedkit.recipe import explain, load_any_recipe
from embedkit.recipe.explain import PAPER_RECIPES
from embedkit.recipe.other_names import RENAMED


def test_a_key_has_type_default_and_description() -> None:
    lines = explain("optim.max_grad_norm").splitlines()
    assert lines[0] == "optim.max_grad_norm (fine-tuning, pretraining)"
    assert lines[1] == "  number >= 0, default 1.0"
    assert "0 turns clipping off." in lines[2]


@pytest.mark.parametrize(
    ("key", "type_"),
    [
        ("optim.lr", "number > 0, required"),
        ("optim.schedule", '"constant" or "linear" or "cosine", default "linear"'),
        ("steps", "integer > 0 or unset, default unset"),
        ("data.mix.weight", "number > 0 or unset, default unset"),
        ("logging.trackers", 'list of: "tensorboard" or "wandb" or "trackio", default []'),
        ("lora.target_modules", '"all-linear" or list of: text, default "all-linear"'),
        ("evaluation.held_out", "true or false, default false"),
        ("data.mix", "list of: table"),
        ("lora", "table or unset"),
    ],
)
def test_types_are_words(key: str, type_: str) -> None:
    assert explain(key).splitlines()[1].strip() == type_


@pytest.mark.parametrize("key", ["optim.lr", "objective.temperature", "model.hidden_size"])
def test_the_values_of_the_papers_are_those_of_their_recipes(key: str) -> None:
    shown = dict(
        line.strip().split(": ", 1)
        for line in explain(key).splitlines()
        if line.strip().startswith(PAPER_RECIPES)
    )
    table, name = key.split(".")
    for recipe in PAPER_RECIPES:
        written = tomllib.loads((shipped("recipes") / f"{recipe}.toml").read_text()).get(table)
        if not isinstance(written, dict) or name not in written:
            assert recipe not in shown
            continue
        resolved = getattr(getattr(load_any_recipe(recipe), table), name)
        assert float(shown[recipe]) == resolved == written[name]
    assert shown


def test_a_value_stands_with_the_comment_above_it() -> None:
    page = explain("optim.lr")
    assert "  neobert-1024: 0.0006\n      As the paper says; the released" in page
    # Nothing stands above this one.
    assert "  cde-stage1: 5e-05\n  cde-stage2" in page
    # What stands above a recipe's first key is on the recipe.
    assert "  neobert-1024: 0\n  neobert-4096: 0\n" in explain("seed")


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_name_of_a_key_is_answered_with_its_new_one(old: str, new: str) -> None:
    with pytest.raises(UserError, match=f"^{old}: was renamed {new}$"):
        explain(old)


def test_a_key_of_two_kinds_is_explained_for_both() -> None:
    page = explain("objective.temperature")
    assert "(fine-tuning, objective.kind = contrastive)\n  number > 0, default 0.07" in page
    assert "(fine-tuning, objective.kind = contextual)\n  number > 0, default 0.02" in page


def test_a_table_lists_its_keys() -> None:
    assert "  keys: checkpoints.every, checkpoints.keep\n" in explain("checkpoints")
    assert "  The optimizer, and the course of its learning rate.\n" in explain("optim")


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("optim.lrr", "did you mean optim.lr?"),
        ("lr", "did you mean optim.lr?"),
        ("warmup", "optim.warmup_steps"),
        ("data.temperature", "did you mean objective.temperature?"),
    ],
)
def test_an_unknown_key_is_answered_with_near_ones(key: str, near: str) -> None:
    with pytest.raises(UserError, match=f"^{key}: no recipe has such a key, ") as refused:
        explain(key)
    assert near in str(refused.value)
    assert "\n" not in str(refused.value)
