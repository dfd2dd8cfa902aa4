"""Relative paths start at the file that names them, and else in the working folder."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from embedkit.data.manifests.manifest import load_manifest
from embedkit.data.pairs.records import open_records
from embedkit.recipe import Recipe
from embedkit.recipe.load_recipes import load_recipe

BESIDE, HERE = "query,positive\nbeside,b\n", "query,positive\nhere,h\n"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder beside that of the files."""
    monkeypatch.setenv("EMBEDKIT_CACHE", str(tmp_path / "cache"))
    for folder in ("mine", "work"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "work")


def manifest(folder: Path, path: str = "pairs.csv") -> str:
    source = {"kind": "files", "files": [{"path": path}]}
    (folder / "m.toml").write_text(tomli_w.dumps({"source": source}))
    return str(folder / "m.toml")


def recipe(folder: Path, **evaluation: Any) -> Recipe:
    tables: dict[str, Any] = {"model": "encoder", "steps": 1, "optim": {"lr": 1e-5}}
    tables["data"] = {"batch_size": 2, "mix": [{"manifest": "m.toml"}, {"manifest": "msmarco"}]}
    tables["evaluation"] = evaluation
    tables["validation"] = {"records": "m.toml"}
    (folder / "recipe.toml").write_text(tomli_w.dumps(tables))
    return load_recipe(str(folder / "recipe.toml"))


def query(name: str) -> str:
    return open_records(load_manifest(name))[0].query


def test_a_file_beside_its_manifest_is_found_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "mine/pairs.csv").write_text(BESIDE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert query(manifest(tmp_path / "mine")) == "beside"
        assert query(manifest(Path("../mine"), "../mine/pairs.csv")) == "beside"


def test_what_is_not_beside_the_file_is_looked_for_in_the_working_folder(tmp_path: Path) -> None:
    Path("pairs.csv").write_text(HERE)
    assert query(manifest(tmp_path / "mine")) == "here"


def test_of_two_that_differ_the_one_beside_the_file_is_read_and_said(tmp_path: Path) -> None:
    (tmp_path / "mine/pairs.csv").write_text(BESIDE)
    Path("pairs.csv").write_text(HERE)
    named = manifest(tmp_path / "mine")
    with pytest.warns(UserWarning, match=r"pairs\.csv is .*mine/pairs\.csv, beside this file, and"):
        assert query(named) == "beside"
    Path("pairs.csv").write_text(BESIDE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert query(named) == "beside"


def test_the_paths_of_a_recipe_start_at_it_and_names_stay(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    (folder / "tasks/one").mkdir(parents=True)
    (folder / "encoder").mkdir()
    manifest(folder)
    found = recipe(folder, task_dirs=["tasks/one", "$EMBEDKIT_DATA/two", "three"])
    assert found.model == str(folder / "encoder")
    assert [mix.manifest for mix in found.data.mix] == [str(folder / "m.toml"), "msmarco"]
    assert found.validation is not None
    assert found.validation.records == str(folder / "m.toml")
    assert found.evaluation.task_dirs == (str(folder / "tasks/one"), "$EMBEDKIT_DATA/two", "three")
    (folder / "msmarco").mkdir()
    assert recipe(folder).data.mix[1].manifest == "msmarco"


def test_what_an_override_names_starts_in_the_working_folder(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    (folder / "other").mkdir()
    recipe(folder)
    assert load_recipe(str(folder / "recipe.toml"), ["model=other"]).model == "other"


def test_the_recipe_of_a_run_is_read_as_the_run_read_it(tmp_path: Path) -> None:
    run = tmp_path / "mine"
    (run / "run.json").write_text("{}")
    for folder in (run, Path()):
        (folder / "eval").mkdir()
    manifest(run)
    found = recipe(run, task_dirs=["eval"])
    # The folder eval of a run holds its scores; the tasks are those of the working folder.
    assert found.evaluation.task_dirs == ("eval",)
    assert found.data.mix[0].manifest == str(run / "m.toml")


def test_a_recipe_in_the_working_folder_is_what_it_was() -> None:
    manifest(Path())
    Path("encoder").mkdir()
    found = recipe(Path())
    assert (found.model, found.data.mix[0].manifest) == ("encoder", "m.toml")
