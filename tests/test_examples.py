"""The examples do what they say."""

import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

import embedkit

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_training_by_hand_ends_in_the_bits_of_the_command(
    small_recipe: Path, tmp_path: Path
) -> None:
    script = ROOT / "examples" / "train_by_hand.py"
    accumulating = tmp_path / "recipe.toml"
    text = small_recipe.read_text().replace("[optim]", "[optim]\ngradient_accumulation_steps = 2")
    accumulating.write_text(text)
    by_hand = [sys.executable, str(script), str(accumulating), str(tmp_path / "by_hand")]
    done = subprocess.run(by_hand, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("step 12: loss ")

    model = embedkit.finetune(accumulating, tmp_path / "run")
    expected = load_file(model / "model.safetensors")
    actual = load_file(tmp_path / "by_hand" / "model.safetensors")
    assert actual.keys() == expected.keys()
    assert all(actual[name].equal(expected[name]) for name in expected)
