"""Settings that every test needs, made before torch or the Hugging Face libraries are imported."""

import os
import random
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from startup.sitecustomize import report_native_bf16

# Nothing in the tests may reach a hub; a test that tries fails at once instead of waiting.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Of the processes that tests start: two threads beside another test's spin more than they compute.
os.environ["OMP_NUM_THREADS"] = "1"
# Whether the CPU has native bf16 is not left to the machine, here and in processes started here.
os.environ.setdefault("EMBEDKIT_TEST_BF16", "absent")
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(Path(__file__).with_name("startup")), os.environ.get("PYTHONPATH")])
)

import numpy as np
import torch
from support.bare_venv import make_bare_venv
from support.small_runs import write_small_recipe
from support.tiny_bert import write_tiny_model

from embedkit import cluster, load_recipe
from embedkit.data.pairs.records import open_records

# Forked gloo ranks hang when the parent has started a thread pool.
torch.set_num_threads(1)

_NATIVE_BF16 = ("absent", "present")
assert os.environ["EMBEDKIT_TEST_BF16"] in _NATIVE_BF16
report_native_bf16(torch.cpu)

_caches = count()


# First, since pytest then puts together again what shares a parameter of a fixture.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffle files and the tests of each, where ``EMBEDKIT_TEST_ORDER`` is set to a seed."""
    if seed := os.environ.get("EMBEDKIT_TEST_ORDER"):
        # A file's tests stay together, since they share fixtures that take seconds to make.
        items.sort(key=lambda item: [_drawn(seed, item.path), _drawn(seed, item.nodeid)])


def _drawn(seed: str, name: object) -> float:
    return random.Random(f"{seed} {name}").random()


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the whole session, whatever processes the tests are shared out to."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session", autouse=True)
def _cache_of_shared_fixtures(shared_folder: Path) -> None:
    """One cache for the fixtures of all processes, as all processes of a user have one."""
    os.environ["EMBEDKIT_CACHE"] = str(shared_folder / "cache")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The cache of one test, which finds nothing there that another has left."""
    folder = tmp_path_factory.getbasetemp() / "caches" / str(next(_caches))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMBEDKIT_CACHE", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def _own_randomness() -> None:
    """Numbers that a test draws without a seed do not depend on what was drawn before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def starter_rows(shared_folder: Path) -> Path:
    """A cache that holds the rows of the starter's sources, which take half a minute to read.

    Nobody writes there but this fixture; a test takes ``starter_cache``.
    """
    folder = shared_folder / "starter"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMBEDKIT_CACHE", str(folder))
        for mix in load_recipe("starter").data.mix:
            open_records(mix.manifest)
    return folder


@pytest.fixture
def starter_cache(starter_rows: Path, own_cache: Path) -> Path:
    """The cache of one test, which finds the rows of the starter's sources there."""
    return shutil.copytree(starter_rows, own_cache, copy_function=os.link)


@pytest.fixture(scope="module", params=_NATIVE_BF16)
def native_bf16(request: pytest.FixtureRequest) -> Iterator[str]:
    """Whether the CPU is said to multiply bf16 natively: a test of this fixture runs both ways."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMBEDKIT_TEST_BF16", request.param)
        yield request.param


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
