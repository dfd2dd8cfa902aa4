"""Texts embedded in a context of real words, by a tiny encoder."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers.normalizers import BertNormalizer

from embedkit.errors import UserError
from embedkit.models import embedding_model, hub
from embedkit.models.contextual.context import Context, Embeddings, similarity
from embedkit.models.contextual.export import write_contextual
from embedkit.models.contextual.model import Contextual
from embedkit.recipe import ContextualConfig, Optim
from embedkit.tokens.batch import TokenBatch
from embedkit.training.optim import build_optimizer

CORPUS = [f"a document about {subject}" for subject in ("otters", "tides", "kilns", "ferns")]
OTHER = [f"the law of {subject}" for subject in ("rents", "wills", "torts")]
TEXTS = ["how do otters sleep", "x", "", "when is it high tide " * 12]


def load(folder: Path, **settings: Any) -> Contextual:
    embedder = hub.load(str(folder))
    embedder.prompts = {"query": "query: ", "document": "document: "}
    return Contextual.around(embedder, ContextualConfig(**({"num_context": 6} | settings)))


@pytest.fixture
def model(tiny_model: Path) -> Contextual:
    return load(tiny_model)


def change_the_network(model: Contextual) -> None:
    # The same weights, cut into other heads.
    model.second.model.config.num_attention_heads *= 2


def change_the_tokenizer(model: Contextual) -> None:
    backend: Any = model.tokenizer.backend_tokenizer
    backend.normalizer = BertNormalizer(lowercase=False)


@pytest.mark.parametrize("change", [change_the_network, change_the_tokenizer])
def test_a_context_of_another_network_or_tokenizer_is_refused(
    change: Callable[[Contextual], None], model: Contextual
) -> None:
    context = model.build_context(CORPUS)
    change(model)
    with pytest.raises(UserError):
        model.encode(TEXTS, context=context)


def test_texts_are_embedded_as_the_network_embeds_them(model: Contextual) -> None:
    context = model.build_context(CORPUS, seed=3)
    assert context.vectors.shape == (4, 32)
    assert (context.corpus_size, context.seed) == (4, 3)
    found = model.encode(TEXTS, context=context, role="query")
    ids = model.tokenizer(["query: " + text for text in TEXTS], truncation=True, max_length=128)
    tokens = TokenBatch.from_lists(ids["input_ids"])
    expected = model.eval()(tokens, context.vectors).detach()
    np.testing.assert_allclose(found.vectors, expected, atol=1e-5)
    assert found.context == context.hash
    assert len(found) == len(TEXTS)


def test_one_text_has_one_vector(model: Contextual) -> None:
    context = model.build_context(CORPUS)
    many = model.encode(TEXTS, context=context)
    one = model.encode(TEXTS[0], context=context)
    assert one.vectors.shape == (32,)
    np.testing.assert_allclose(one.vectors, many.vectors[0], atol=1e-5)
    cosines = many.vectors[:1] @ many.vectors.T
    np.testing.assert_allclose(similarity(one, many), cosines, atol=1e-5)
    np.testing.assert_allclose(similarity(many, one), cosines.T, atol=1e-5)
    with pytest.raises(UserError, match=r"texts\[0\] = 7: every text must be a str"):
        model.encode([7], context=context)  # type: ignore[list-item]


def test_a_corpus_that_is_a_single_text_is_refused(model: Contextual) -> None:
    with pytest.raises(UserError, match="the corpus is a single str: pass a list of documents"):
        model.build_context("a document about otters")


def test_any_number_of_texts_gives_the_same_vectors(
    model: Contextual, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = model.build_context(CORPUS)
    whole = model.encode(TEXTS, context=context).vectors
    monkeypatch.setattr(embedding_model, "_BATCH_TOKENS", 30)
    monkeypatch.setattr(embedding_model, "_MOST_TOKENS", 40)
    again = model.encode(TEXTS, context=context).vectors
    np.testing.assert_allclose(again, whole, atol=1e-5)
    assert model.encode([], context=context).vectors.shape == (0, 32)


def test_queries_and_documents_get_the_models_prompts(model: Contextual) -> None:
    context = model.build_context(CORPUS)
    query = model.encode(["a"], context=context, role="query").vectors
    document = model.encode(["a"], context=context, role="document").vectors
    assert np.abs(query - document).max() > 1e-3
    literal = model.encode(["a"], context=context, prompt="query: ").vectors
    assert np.array_equal(literal, query)
    plain = model.build_context(CORPUS, prompt="")
    assert plain.hash != context.hash


def test_a_draw_depends_on_the_seed_alone(model: Contextual) -> None:
    corpus = [f"document number {number}" for number in range(40)]
    draws = [model.build_context(corpus, num_documents=5, seed=seed) for seed in (0, 0, 1)]
    hashes = [each.hash for each in draws]
    assert hashes[0] == hashes[1] != hashes[2]
    assert all(each.vectors.shape == (5, 32) for each in draws)
    distinct = torch.unique(draws[0].vectors.round(decimals=4), dim=0)
    assert len(distinct) == 5


def test_vectors_of_different_contexts_refuse_to_be_compared(model: Contextual) -> None:
    here, there = model.build_context(CORPUS), model.build_context(OTHER)
    queries = model.encode(TEXTS, context=here, role="query")
    documents = model.encode(CORPUS, context=here)
    scores = similarity(queries, documents)
    np.testing.assert_allclose(scores, queries.vectors @ documents.vectors.T)
    assert np.abs(scores).max() <= 1 + 1e-5
    one, other = sorted((here.hash[:12], there.hash[:12]))
    with pytest.raises(
        UserError, match=f"in the contexts {one} and {other}: such vectors cannot be compared"
    ):
        similarity(queries, model.encode(CORPUS, context=there))


def test_a_forgotten_context_is_a_mistake(model: Contextual) -> None:
    with pytest.raises(UserError, match=r"pass context=model\.build_context\(corpus\)"):
        model.encode(TEXTS)


def test_no_documents_are_a_context_of_their_own(model: Contextual) -> None:
    none = model.build_context([])
    assert none.vectors.shape == (0, 32)
    alone = model.encode(TEXTS, context=none)
    beside = model.encode(TEXTS, context=model.build_context(CORPUS))
    assert alone.context != beside.context
    assert np.abs(alone.vectors - beside.vectors).max() > 1e-4


def change_a_weight(model: Contextual) -> None:
    with torch.no_grad():
        assert model.slots.null is not None
        model.slots.null[0] += 1e-6


def change_the_prompts(model: Contextual) -> None:
    model.prompts = {"query": "find: "}


def step(model: Contextual) -> None:
    model.encode(["a"], context=model.build_context([]))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    build_optimizer(model, Optim(lr=1e-3)).step()


def load_others(model: Contextual) -> None:
    model.load_state_dict({name: each + 1 for name, each in model.state_dict().items()})


@pytest.mark.parametrize("change", [change_a_weight, change_the_prompts, step, load_others])
def test_a_context_of_another_model_is_refused(
    change: Callable[[Contextual], None], model: Contextual
) -> None:
    context = model.build_context(CORPUS)
    model.encode(TEXTS, context=context)
    change(model)
    with pytest.raises(UserError, match=r"made by another model than .*; build it anew"):
        model.encode(TEXTS, context=context)


@pytest.mark.parametrize(
    ("settings", "arguments", "message"),
    [
        ({}, {"num_documents": 7}, "num_documents = 7: the model has 6 slots; ask for fewer"),
        ({}, {"num_documents": -1}, "num_documents = -1"),
        (
            {"null_vector": False, "context_dropout": 0.0},
            {},
            "a context of 4 documents: .* no null vector to fill its 6 slots",
        ),
    ],
)
def test_a_context_that_does_not_fit_is_refused(
    tiny_model: Path, settings: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        load(tiny_model, **settings).build_context(CORPUS, **arguments)


def test_a_saved_context_is_the_same_context(model: Contextual, tmp_path: Path) -> None:
    context = model.build_context(CORPUS, seed=5)
    context.save(tmp_path / "new" / "corpus.safetensors")
    again = Context.load(tmp_path / "new" / "corpus.safetensors")
    assert again.hash == context.hash
    assert (again.corpus_size, again.seed, again.model) == (4, 5, model.weights_identity)
    queries = model.encode(TEXTS, context=again)
    assert similarity(queries, model.encode(CORPUS, context=context)).shape == (4, 4)


@pytest.mark.parametrize(("built", "served"), [(torch.bfloat16, None), (None, torch.bfloat16)])
def test_a_context_serves_its_weights_in_any_arithmetic(
    built: torch.dtype | None, served: torch.dtype | None, model: Contextual, tmp_path: Path
) -> None:
    model.autocast = built
    model.build_context(CORPUS).save(tmp_path / "corpus.safetensors")
    documents = model.encode(CORPUS, context=Context.load(tmp_path / "corpus.safetensors"))
    identity = model.identity
    model.autocast = served
    context = Context.load(tmp_path / "corpus.safetensors")
    queries = model.encode(TEXTS, context=context)
    tokens = TokenBatch.from_lists(
        model.tokenizer([f"document: {text}" for text in TEXTS], truncation=True)["input_ids"]
    )
    expected = model.eval()(tokens, context.vectors).detach()
    np.testing.assert_allclose(queries.vectors, expected, atol=1e-5 if served is None else 1e-2)
    assert similarity(queries, documents).shape == (4, 4)
    write_contextual(model, tmp_path / "frozen", context=context)
    # A vector that is cached for one arithmetic must not be found by the other.
    assert model.identity != identity


def test_a_file_that_is_no_context_is_refused(model: Contextual, tmp_path: Path) -> None:
    path = tmp_path / "corpus.safetensors"
    with pytest.raises(UserError, match="no such file"):
        Context.load(path)
    path.write_text("text")
    with pytest.raises(UserError, match="is no context"):
        Context.load(path)
    save_file({"vectors": torch.ones(2, 3)}, path)
    with pytest.raises(UserError, match="is no context"):
        Context.load(path)


def test_a_changed_file_is_refused(model: Contextual, tmp_path: Path) -> None:
    path = tmp_path / "corpus.safetensors"
    context = model.build_context(CORPUS)
    context.save(path)
    facts = {"model": context.model, "corpus_size": 4, "seed": 0, "hash": context.hash}
    vectors = load_file(path)["vectors"]
    vectors[0, 0] += 1
    save_file({"vectors": vectors}, path, metadata={"embedkit_context": json.dumps(facts)})
    with pytest.raises(UserError, match="not those it was saved with"):
        Context.load(path)


def test_a_frozen_context_is_taken_where_none_is_given(model: Contextual) -> None:
    context = model.build_context(CORPUS)
    expected = model.encode(TEXTS, context=context)
    model.frozen = context
    found = model.encode(TEXTS)
    assert isinstance(found, Embeddings)
    assert found.context == expected.context
    assert np.array_equal(found.vectors, expected.vectors)


def test_encoding_knows_no_dropout_and_leaves_training_on(model: Contextual) -> None:
    context = model.build_context(CORPUS)
    expected = model.encode(TEXTS, context=context).vectors
    model.train()
    assert np.array_equal(model.encode(TEXTS, context=context).vectors, expected)
    assert model.training


def test_vectors_are_arrays_that_refuse_those_of_another_context() -> None:
    here = Embeddings(np.eye(3, dtype=np.float32), "a" * 64)
    there = Embeddings(np.eye(3, dtype=np.float32), "b" * 64)
    part = here[1:]
    assert isinstance(part, Embeddings)
    assert part.context == here.context
    np.testing.assert_array_equal(here @ here[:2].T, np.eye(3)[:, :2])
    assert type(here @ here.T) is np.ndarray
    assert type(here.vectors) is np.ndarray
    comparisons: list[Callable[[], object]] = [
        lambda: here @ there.T,
        lambda: here - there,
        lambda: np.minimum(here, there),
        lambda: np.dot(here, there.T),
        lambda: here.dot(there.T),
        lambda: np.inner(here, there),
        lambda: np.einsum("id,jd->ij", here, there),
        lambda: np.linalg.multi_dot([here, there.T]),
        lambda: np.multiply(here, 2, out=there.copy()),
        lambda: np.concatenate([here, there]),
        lambda: similarity(here, there),
    ]
    for mixed in comparisons:
        with pytest.raises(UserError, match="cannot be compared"):
            mixed()
    assert type(np.dot(here, here.T)) is np.ndarray
    assert type(np.concatenate([here, part])) is np.ndarray


def test_vectors_that_are_changed_in_place_or_pickled_keep_their_context() -> None:
    vectors = Embeddings(np.eye(3, dtype=np.float32), "a" * 64)
    halved = vectors.copy()
    halved /= 2
    for same in (halved * 2, pickle.loads(pickle.dumps(vectors))):
        np.testing.assert_array_equal(same, vectors.vectors)
    for kept in (halved, pickle.loads(pickle.dumps(vectors))):
        assert isinstance(kept, Embeddings)
        assert kept.context == vectors.context
