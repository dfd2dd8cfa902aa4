"""The examples do what they say."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from support.stock_models import write_stock

import embedkit

SCRIPT = Path(__file__).parents[1] / "examples" / "train_by_hand.py"


@pytest.mark.slow
def test_training_by_hand_exports_the_bits_of_the_command(
    small_recipe: Path, tiny_model: Path, tmp_path: Path
) -> None:
    # The recipe accumulates gradients, and keeps the Dense modules of a model of any norm.
    start = write_stock(tiny_model, tmp_path / "stock", "two dense")
    recipe = tmp_path / "recipe.toml"
    text = small_recipe.read_text().replace(str(tiny_model), str(start))
    text = text.replace("[optim]", "[optim]\ngradient_accumulation_steps = 2")
    recipe.write_text(f"{text}\n[embedder]\ntrain_dense = false\n")
    by_hand = [sys.executable, str(SCRIPT), str(recipe), str(tmp_path / "by_hand" / "model")]
    done = subprocess.run(by_hand, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("step 12: loss ")

    expected = contents(embedkit.finetune(recipe, tmp_path / "run"))
    actual = contents(tmp_path / "by_hand" / "model")
    assert sorted(actual) == sorted(expected)
    assert [name for name in expected if actual[name] != expected[name]] == []
    assert b'"query": "query: "' in actual["config_sentence_transformers.json"]


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of an export, but for the model card and the marker with its hash."""
    files = (path for path in folder.rglob("*") if path.is_file())
    named = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return {name: named[name] for name in named.keys() - {"README.md", "embedkit.json"}}


@pytest.mark.parametrize(
    "table", ["[lora]\nrank = 2", '[objective]\nkind = "contextual"\n[context]']
)
def test_training_by_hand_refuses_what_it_leaves_out(
    table: str, small_recipe: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f"{small_recipe.read_text()}\n{table}\n")
    main = runpy.run_path(str(SCRIPT))["main"]
    with pytest.raises(SystemExit, match=r"recipe\.toml: has epochs, .* use embedkit finetune"):
        main(str(recipe), tmp_path / "by_hand")
