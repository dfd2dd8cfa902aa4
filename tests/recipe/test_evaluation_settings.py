"""A recipe's ``[evaluation]``, the command and Python share their settings."""

from pathlib import Path

import pytest

import embedkit
from embedkit.config import validated
from embedkit.errors import ArgumentError, UserError
from embedkit.evaluation.settings import settings_of
from embedkit.recipe import Evaluation, ScoringSettings


def test_a_recipe_without_settings_scores_as_the_command_without_options() -> None:
    assert settings_of(Evaluation()) == embedkit.EvaluationSettings()
    assert set(ScoringSettings.model_fields) == set(Evaluation.model_fields).intersection(
        embedkit.EvaluationSettings.model_fields
    )


def test_options_take_precedence_over_a_recipe_and_leave_its_other_settings() -> None:
    evaluation = Evaluation(dtype="fp16", instructions="paper", cache_size="1GB")
    settings = settings_of(evaluation, {"instructions": "none", "truncate_dim": 8})
    assert (settings.dtype, settings.cache_bytes) == ("fp16", 10**9)
    assert (settings.instructions, settings.truncate_dim) == ("none", 8)
    with pytest.raises(ArgumentError, match="truncate_dims: there is no such argument"):
        settings_of(evaluation, {"truncate_dims": 8})


@pytest.mark.parametrize("size", ["plenty", "20"])
def test_a_cache_size_without_a_unit_is_refused_when_the_recipe_is_read(size: str) -> None:
    told = rf"recipe\.toml: cache_size: write a number and a unit, such as 20GB \(got '{size}'\)"
    with pytest.raises(UserError, match=told):
        validated(Evaluation, {"cache_size": size}, "recipe.toml")


def test_the_mirror_may_lie_among_the_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    evaluation = validated(Evaluation, {"data_dir": "$EMBEDKIT_DATA/mirror"}, "recipe.toml")
    monkeypatch.setenv("EMBEDKIT_DATA", str(tmp_path))
    assert evaluation.mirror == settings_of(evaluation).mirror == tmp_path / "mirror"
    # A recipe is written with what it said, which holds on other machines too.
    assert evaluation.model_dump(mode="json")["data_dir"] == "$EMBEDKIT_DATA/mirror"
    assert not Evaluation(cache=False).cache_bytes
