from typing import Any

import pytest

from embedkit.finetuning.run import remarks
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
