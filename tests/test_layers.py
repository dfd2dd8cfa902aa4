"""Who may import whom, and the page that shows it."""

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

import embedkit_cli
import pytest
from support.architecture import (
    FILES,
    GRADIENT_PATH,
    LEVEL,
    PACKAGE,
    PAGE,
    modules_imported,
    page,
    part_of,
)

import embedkit


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    part = part_of(path)
    for name in modules_imported(path):
        if name.startswith("embedkit."):
            imported = name.split(".")[1]
            # errors is below all, the other modules at the root included.
            below = imported in {part, "errors"} or LEVEL[imported] < LEVEL[part]
            assert below, f"{path} imports {name}"


def test_every_folder_has_its_layer_and_no_module_is_new_at_the_root() -> None:
    assert LEVEL.keys() == {part_of(path) for path in FILES}


def test_no_folder_shadows_a_function_of_the_package() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    assert not folders & set(embedkit.__all__)


def test_the_page_shows_the_layers_as_they_are() -> None:
    said = PAGE.read_text(encoding="utf-8")
    assert said == page(), f"{PAGE} is out of date: run python tests/support/architecture.py"


def test_the_page_names_files_that_exist() -> None:
    named = [word.strip("`,.:()") for word in PAGE.read_text(encoding="utf-8").split()]
    files = [word for word in named if word.endswith(".py") and "/" in word]
    assert files
    roots = (PACKAGE, PACKAGE.parent)
    assert not [word for word in files if not any((root / word).is_file() for root in roots)]


def test_the_page_names_the_files_from_the_command_to_the_gradient() -> None:
    section = (
        PAGE.read_text(encoding="utf-8").partition("## From the command")[2].partition("\n## ")
    )
    steps = [line.split("`")[1] for line in section[0].splitlines() if line[:1].isdigit()]
    assert steps == GRADIENT_PATH


def test_the_package_knows_nothing_of_its_command() -> None:
    for path in FILES:
        assert not [name for name in modules_imported(path) if name.startswith("embedkit_cli")]


def test_one_folder_alone_speaks_to_other_ranks() -> None:
    users = {
        part_of(path)
        for path in FILES
        if any(name.startswith("torch.distributed") for name in modules_imported(path))
    }
    assert users == {"distributed"}


def test_the_loop_knows_no_loss_and_no_data() -> None:
    for path in (PACKAGE / "training").glob("*.py"):
        known = {name.split(".")[1] for name in modules_imported(path) if "embedkit." in name}
        assert not known & {"objectives", "data", "models", "evaluation"}, path


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
