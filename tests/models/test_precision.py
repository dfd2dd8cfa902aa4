"""What ``auto`` means on a CPU with native bf16 and on one without."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from embedkit.config import validated
from embedkit.models import precision
from embedkit.recipe import Recipe

CPU = torch.device("cpu")


def recipe(**settings: Any) -> Recipe:
    data = {"batch_size": 4, "mix": [{"manifest": "rows"}]}
    tables = {"model": "starter", "data": data, "optim": {"lr": 1e-3}, "steps": 9, **settings}
    return validated(Recipe, tables, "recipe")


def test_auto_is_what_the_cpu_multiplies(native_bf16: str) -> None:
    expected = {"present": torch.bfloat16, "absent": None}[native_bf16]
    assert precision.autocast_dtype("auto", CPU) is expected
    assert precision.autocast_dtype("bf16", CPU) is torch.bfloat16
    assert precision.autocast_dtype("fp32", CPU) is None


def test_a_recipe_has_as_many_steps_whatever_the_cpu_multiplies(native_bf16: str) -> None:
    resolved, line = precision.resolve(recipe(), CPU)
    expected = {
        "present": ("bf16", "bf16"),
        "absent": ("fp32", "fp32 (this CPU has no native bf16)"),
    }
    assert (resolved.precision, line) == expected[native_bf16]
    assert resolved.steps == 9
    # What is resolved once stays so elsewhere.
    assert precision.resolve(resolved, CPU) == (resolved, resolved.precision)


def said_by_a_process(expression: str, environment: dict[str, str]) -> str:
    script = f"import torch; from embedkit.models.precision import has_bf16; print({expression})"
    run = [sys.executable, "-c", script]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.slow
def test_a_process_that_a_test_starts_hears_what_the_test_hears(native_bf16: str) -> None:
    found = said_by_a_process("has_bf16(torch.device('cpu'))", dict(os.environ))
    assert found == str(native_bf16 == "present")


@pytest.mark.slow
def test_any_other_process_hears_the_cpu_itself() -> None:
    environment = {name: each for name, each in os.environ.items() if name != "PYTHONPATH"}
    wanted = ("amx_tile", "avx512_bf16")
    found = said_by_a_process(
        f"has_bf16(torch.device('cpu')) == "
        f"any(torch.cpu.get_capabilities().get(name) for name in {wanted})",
        environment,
    )
    assert found == "True"
