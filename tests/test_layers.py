"""Who may import whom. A module imports from the lines above its own, and from its own folder."""

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import embedkit_cli
import pytest

import embedkit

LAYERS = [
    # Layer 0 of the design, in the order in which its modules build on each other.
    {"errors", "hashing", "interrupt", "keyed", "losses", "network", "tokens"},
    {"blocks", "distributed", "toml", "tokenization"},
    {"recipe", "sharding"},
    {"optim", "precision", "prompts", "speed"},
    # Layers 1 to 4.
    {"checkpoint", "data", "gradcache", "metrics", "models"},
    {"clustering"},
    {"evaluation", "mining", "mixture", "objectives", "run_folder", "text_mixture"},
    {"held_out_loss", "initial_weights", "inspection", "measuring", "model_card", "report"},
    {"starting_model", "trainer"},
    {"course"},
    {"evaluating", "finetuning", "pretraining"},
    {"runs"},
]
LEVEL = {module: level for level, modules in enumerate(LAYERS) for module in modules}
ROOT = Path(embedkit.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def modules_imported(path: Path) -> Iterator[str]:
    """The full names of what a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    part = part_of(path)
    for name in modules_imported(path):
        if name.startswith("embedkit."):
            imported = name.split(".")[1]
            assert imported == part or LEVEL[imported] < LEVEL[part], f"{path} imports {name}"


def test_every_module_has_its_layer() -> None:
    assert LEVEL.keys() == {part_of(path) for path in FILES}


def test_the_package_knows_nothing_of_its_command() -> None:
    for path in FILES:
        assert not [name for name in modules_imported(path) if name.startswith("embedkit_cli")]


@pytest.mark.slow
def test_two_modules_alone_speak_to_other_ranks() -> None:
    users = {
        part_of(path)
        for path in FILES
        if any(name.startswith("torch.distributed") for name in modules_imported(path))
    }
    assert users == {"distributed", "sharding"}


def test_the_loop_knows_no_loss_and_no_data() -> None:
    known = {
        name.split(".")[1] for name in modules_imported(ROOT / "trainer.py") if "embed" in name
    }
    assert not known & {"losses", "objectives", "data", "models", "gradcache", "evaluation"}


@pytest.mark.parametrize("package", [embedkit, embedkit_cli], ids=lambda package: package.__name__)
def test_every_module_can_be_imported(package: ModuleType) -> None:
    prefix = f"{package.__name__}."
    found = [each.name for each in pkgutil.walk_packages(package.__path__, prefix)]
    assert len(found) > 2
    for each in found:
        if not each.endswith("__main__"):
            importlib.import_module(each)


def test_what_the_package_offers_is_there() -> None:
    for name in embedkit.__all__:
        assert getattr(embedkit, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'no_such_thing'"):
        _ = embedkit.no_such_thing
