"""Models are loaded so that they encode as stock sentence-transformers does."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

import embedkit
from embedkit.models import hub

TEXTS = ["myocardial infarction", "The bank raised its interest rate.", "word " * 300]


def stock(dtype: torch.dtype) -> np.ndarray:
    folder, kwargs = hub.resolve("starter"), {"torch_dtype": dtype}
    model = SentenceTransformer(folder, device="cpu", model_kwargs=kwargs)
    return np.asarray(model.encode(TEXTS))


@pytest.mark.usefixtures("native_bf16")
def test_without_options_vectors_are_those_of_the_stock_library() -> None:
    ours, theirs = embedkit.load("starter").encode(TEXTS), stock(torch.float32)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    np.testing.assert_allclose((ours * theirs).sum(axis=1), 1, rtol=0, atol=1e-5)


def test_vectors_in_fp16_are_rounded_to_it_as_by_the_stock_library() -> None:
    model = embedkit.load("starter", dtype="fp16")
    ours, theirs = model.encode(TEXTS), stock(torch.float16)
    assert model.vector_dtype == theirs.dtype == np.float16
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, ours.astype(np.float16))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)


def test_vectors_in_bf16_are_not_rounded_as_by_the_stock_library() -> None:
    model = embedkit.load("starter", dtype="bf16")
    assert model.vector_dtype == stock(torch.bfloat16).dtype == np.float32
    ours = model.encode(TEXTS)
    assert not np.array_equal(ours, ours.astype(np.float16))
