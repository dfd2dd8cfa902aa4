"""One load of each encoder for all tests of evaluation."""

import pytest
from evaluation.encoders import minilm, random_model
from sentence_transformers import SentenceTransformer


@pytest.fixture(scope="session")
def minilm_model() -> SentenceTransformer:
    return minilm()


@pytest.fixture(scope="session")
def noise_model(tmp_path_factory: pytest.TempPathFactory) -> SentenceTransformer:
    return random_model(str(tmp_path_factory.mktemp("noise")))
