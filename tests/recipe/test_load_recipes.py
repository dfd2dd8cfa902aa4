"""Recipes are read: keys that had another name once, and keys that are gone."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from support.small_runs import metrics_of, write_small_pretraining, write_small_recipe

from embedkit import UserError, finetune, load_pretrain_recipe, load_recipe
from embedkit.recipe.load_recipes import with_new_names
from embedkit.recipe.other_names import RENAMED

OLD = ["optim.clip=0.5", "optim.accumulation=2", "objective.chunk_tokens=64"]


def test_old_names_are_read_and_told_in_one_line(tiny_model: Path, tmp_path: Path) -> None:
    name = str(write_small_recipe(tmp_path, tiny_model))
    with pytest.warns(UserWarning, match="optim.clip was renamed optim.max_grad_norm") as warned:
        recipe = load_recipe(name, [*OLD, "optim.final_lr_share=0.1"])
    assert len(warned) == 1
    assert "\n" not in str(warned[0].message)
    assert recipe.optim.max_grad_norm == 0.5
    assert recipe.optim.gradient_accumulation_steps == 2
    assert recipe.optim.min_lr_ratio == 0.1
    assert recipe.objective.model_dump()["micro_batch_tokens"] == 64


def test_a_pretraining_recipe_is_read_too(tiny_model: Path, tmp_path: Path) -> None:
    path = write_small_pretraining(tmp_path, str(tiny_model))
    text = path.read_text().replace("micro_batch_tokens", "micro_tokens")
    assert "micro_tokens = " in text
    path.write_text(text)
    with pytest.warns(UserWarning, match="data.micro_tokens was renamed data.micro_batch_tokens"):
        assert load_pretrain_recipe(str(path)).data.micro_batch_tokens == 50


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_both_names_at_once_are_refused(old: str, new: str) -> None:
    section, key = old.split(".")
    with pytest.raises(UserError, match=f"{old} was renamed {new}, and both are set"):
        with_new_names({section: {key: 1, new.split(".")[1]: 2}}, "recipe")


def test_a_length_that_depends_on_the_machine_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    name = str(write_small_recipe(tmp_path, tiny_model))
    with pytest.raises(UserError, match=r"small\.toml: fp32_steps is gone, .* pass --set steps=N"):
        load_recipe(name, ["fp32_steps=3"])


@pytest.mark.slow
def test_a_run_goes_on_from_a_checkpoint_with_old_names(tiny_model: Path, tmp_path: Path) -> None:
    name = str(write_small_recipe(tmp_path, tiny_model))
    recipe = load_recipe(name, ["optim.max_grad_norm=0.5"])
    finetune(recipe, tmp_path / "whole")
    finetune(recipe, tmp_path / "run")
    _age(tmp_path / "run")
    finetune(recipe, tmp_path / "run", resume=True)
    assert metrics_of(tmp_path / "run") == metrics_of(tmp_path / "whole")
    with pytest.raises(UserError, match=r"optim\.max_grad_norm: 0\.5 -> 0\.7"):
        finetune(load_recipe(name, ["optim.max_grad_norm=0.7"]), tmp_path / "run", resume=True)


def _age(run: Path) -> None:
    """Leave the run's first checkpoint alone, its facts under the old names of the keys."""
    checkpoints = sorted((run / "checkpoints").iterdir())
    for folder in checkpoints[1:]:
        shutil.rmtree(folder)
    state = checkpoints[0] / "state.json"
    stored = json.loads(state.read_text())
    optim, objective = stored["facts"]["recipe"]["optim"], stored["facts"]["recipe"]["objective"]
    optim["clip"] = optim.pop("max_grad_norm")
    optim["final_lr_share"] = optim.pop("min_lr_ratio")
    optim["accumulation"] = optim.pop("gradient_accumulation_steps")
    objective["chunk_tokens"] = objective.pop("micro_batch_tokens")
    stored["facts"]["recipe"]["fp32_steps"] = None
    state.write_text(json.dumps(stored))
    hashes = checkpoints[0] / "sha256.json"
    known = json.loads(hashes.read_text())
    known["state.json"] = hashlib.sha256(state.read_bytes()).hexdigest()
    hashes.write_text(json.dumps(known))
