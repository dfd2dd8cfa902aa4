"""The wheel as a user gets it, and what the command costs before it does anything."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.bare_venv import make_bare_venv, run_bare

ROOT = Path(__file__).parents[1]

WITHOUT_TORCH = """
import sys
from embedkit_cli.app import main
sys.argv = ["embedkit", *{words!r}]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
heavy = {{"torch", "transformers", "mteb", "datasets", "sentence_transformers"}}
assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["finetune", "--help"],
        ["pretrain", "--help"],
        ["export", "--help"],
        ["data", "--help"],
        ["eval-mteb", "--help"],
        ["eval-perplexity", "--help"],
    ],
    ids=" ".join,
)
def test_help_is_there_before_torch_is(words: list[str]) -> None:
    run = [sys.executable, "-c", WITHOUT_TORCH.format(words=words)]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Usage: embedkit" in done.stdout


def test_showing_a_recipe_needs_no_torch() -> None:
    run = [sys.executable, "-c", WITHOUT_TORCH.format(words=["show", "starter"])]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 'manifest = "hpo_synonym"' in done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = ["-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run([sys.executable, *build], cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_holds_code_recipes_and_manifests_and_nothing_else(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    expected = {"embedkit/py.typed"}
    for source, target in [
        ("embedkit", "embedkit"),
        ("cli/embedkit_cli", "embedkit_cli"),
        ("recipes", "embedkit/recipes"),
        ("data_manifests", "embedkit/data_manifests"),
    ]:
        files = [path for kind in ("py", "toml") for path in (ROOT / source).rglob(f"*.{kind}")]
        expected |= {f"{target}/{path.relative_to(ROOT / source)}" for path in files}
    assert {name for name in held if ".dist-info/" not in name} == expected


@pytest.mark.slow
def test_the_wheel_works_from_any_folder(wheel: Path, tmp_path: Path) -> None:
    python = make_bare_venv(tmp_path / "venv")
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    install = ["install", "--quiet", "--no-index", "--no-deps", str(wheel)]
    subprocess.run([*pip, *install], check=True, capture_output=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = python.with_name("embedkit")
    assert "finetune" in run_bare([command, "--help"], elsewhere)
    shown = run_bare([command, "show", "starter"], elsewhere)
    assert 'manifest = "hpo_synonym"' in shown
    found = "import embedkit.config as t; print(t.__file__, t.shipped('recipes'))"
    assert str(ROOT) not in run_bare([python, "-c", found], elsewhere)
    assert run_bare([python, "-m", "embedkit_cli", "show", "starter"], elsewhere) == shown


def test_importing_the_package_imports_no_library() -> None:
    code = "import sys, embedkit; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_neobert_opens_in_transformers_once_its_package_is_imported(tmp_path: Path) -> None:
    code = """
import sys
from transformers import AutoModel
import embedkit.models.neobert as neobert
config = neobert.NeoBERTConfig(
    vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
)
neobert.NeoBERTModel(config).save_pretrained(sys.argv[1])
print(type(AutoModel.from_pretrained(sys.argv[1])).__name__)
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    assert found.stdout.split()[-1] == "NeoBERTModel"


@pytest.mark.slow
@pytest.mark.parametrize("module", ["embedkit", "embedkit_cli"])
def test_the_command_runs_as_a_module(module: str) -> None:
    command = [sys.executable, "-m", module, "show", "starter"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True)
    assert 'manifest = "hpo_synonym"' in shown.stdout
