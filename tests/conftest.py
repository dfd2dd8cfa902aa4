"""Settings that every test needs, made before torch or the Hugging Face libraries are imported."""

import os
from pathlib import Path

import pytest

# Nothing in the tests may reach a hub; a test that tries fails at once instead of waiting.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Of the processes that tests start: two threads beside another test's spin more than they compute.
os.environ["OMP_NUM_THREADS"] = "1"

import torch
from support.bare_venv import make_bare_venv
from support.small_runs import write_small_recipe
from support.tiny_bert import write_tiny_model

from embedkit import cluster, load_recipe

# Forked gloo ranks hang when the parent has started a thread pool.
torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _own_cache_for_the_session(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One for all processes that the tests are shared out to, as all processes of a user have."""
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    os.environ["EMBEDKIT_CACHE"] = str(shared / "cache")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny BERT with a real tokenizer. Read it only: all tests share it."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "bert")


@pytest.fixture(scope="session")
def small_recipe(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a recipe whose runs take a second. Read it only: all tests share it."""
    return write_small_recipe(tmp_path_factory.mktemp("small"), tiny_model)


@pytest.fixture(scope="session")
def small_tables(
    small_recipe: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The batch tables ``one`` and ``other`` of the small recipe. Read them only."""
    folder = tmp_path_factory.mktemp("tables")
    for seed, name in enumerate(("one", "other")):
        recipe = load_recipe(str(small_recipe))
        cluster(recipe, folder / name, surrogate=tiny_model, dims=8, seed=seed)
    return folder


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has embedkit's dependencies but not embedkit."""
    return make_bare_venv(tmp_path_factory.mktemp("bare") / "venv")
