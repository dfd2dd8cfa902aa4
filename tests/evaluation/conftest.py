"""One load of each encoder, and one mirror, for all tests of evaluation."""

from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer
from support.encoders import minilm, random_model
from support.mirrors import write_mirror


@pytest.fixture(scope="session")
def minilm_model() -> SentenceTransformer:
    return minilm()


@pytest.fixture(scope="session")
def noise_model(tmp_path_factory: pytest.TempPathFactory) -> SentenceTransformer:
    return random_model(str(tmp_path_factory.mktemp("noise")))


@pytest.fixture
def mirror(
    mirrored_rows: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The mirror, read without leaving anything in the user's own cache of data sets."""
    cache = tmp_path_factory.getbasetemp() / "datasets"
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", cache)
    return mirrored_rows


@pytest.fixture(scope="session")
def mirrored_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mirror of hub repositories. Read it only: all tests share it."""
    return write_mirror(tmp_path_factory.mktemp("mirror"))


@pytest.fixture
def one_text_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of which small sets of texts have some for every rank."""
    monkeypatch.setattr("embedkit.models.embedding_model._BATCH_TOKENS", 1)
